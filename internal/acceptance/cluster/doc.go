// Package cluster has the acceptance tests of several nodes: real gateways as processes, with real nats-servers.
package cluster
