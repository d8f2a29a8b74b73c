// Package screen reads what terminals print: the marks of their shells, and what is to be seen.
package screen
