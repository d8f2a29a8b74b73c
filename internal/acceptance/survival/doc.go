// Package survival has the acceptance tests of survival: a gateway, a keeper or a shell that dies, stops or is replaced at any moment, and what is left of the sessions.
package survival
