// Package browser has a test only: the TypeScript client runs the clients' scenarios in Chromium.
package browser
