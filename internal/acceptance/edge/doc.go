// Package edge has the acceptance tests of limits and operation: scarce descriptors, memory and disks, hostile clients, file systems that hang, logs, metrics, changed settings, and the README.
package edge
