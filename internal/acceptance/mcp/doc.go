// Package mcp has the acceptance tests of the tools for agents (Model Context Protocol), over stdio and over HTTP.
package mcp
