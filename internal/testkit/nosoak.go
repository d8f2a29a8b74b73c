//go:build !soak

package testkit

// Soak says that the tests run at full length: go test -tags soak.
const Soak = false
