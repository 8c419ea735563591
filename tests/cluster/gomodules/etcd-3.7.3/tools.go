//go:build tools

// Package tools names the store of the tests' cluster.
package tools

import _ "go.etcd.io/etcd/server/v3"
