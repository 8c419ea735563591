# A module that needs nothing but Terraform itself: `terraform_data` is built in.

variable "name" {
  description = "What the database is called."
  type        = string
}

variable "port" {
  description = "Where it listens."
  type        = number
  default     = 5432
}

variable "zones" {
  description = "Where its replicas are."
  type        = list(string)
  default     = ["a"]
}

variable "settings" {
  description = "Anything else."
  type        = any
  default     = {}
}

# Stands for a database. A changed input updates it.
resource "terraform_data" "database" {
  input = {
    host = "${var.name}.db.internal"
    port = var.port
  }
}

# Stands for a password that is made once and known to nobody: it stays when the database is updated.
resource "terraform_data" "password" {}

output "host" {
  value = terraform_data.database.output.host
}

output "port" {
  value = terraform_data.database.output.port
}

output "zones" {
  value = var.zones
}

output "settings" {
  value = merge({ pool = 10, tls = true }, var.settings)
}

output "password" {
  value     = substr(sha256(terraform_data.password.id), 0, 24)
  sensitive = true
}
