// Package browser drives the page in a real Chromium against a real gateway. It has no code of its own: tests only.
package browser
