// Package users has the acceptance tests of isolation: sessions of other users, a gateway that is not root, and everything in a sandbox.
package users
