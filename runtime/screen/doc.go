// Package screen is the terminal emulator. It reads what terminals print: the marks of their shells as it passes (Marks), and what is to be seen, when
// somebody asks (Screen).
package screen
