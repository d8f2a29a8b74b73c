package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// printJSON prints v as one indented document. Answers of the server are passed as jsontext.Value: printed as they came.
func printJSON(w io.Writer, v any) error {
	b, err := json.Marshal(v, jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// printLine prints v as one line of NDJSON.
func printLine(w io.Writer, v any) error {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// printTable prints rows in columns. Cells come from other people's sessions, so control characters are made visible.
func printTable(w io.Writer, header []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(header) > 0 {
		fmt.Fprintln(t, strings.Join(header, "\t"))
	}
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// printable replaces what would move the cursor or change colours; line breaks become spaces.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return '�'
	}, s)
}

// shorten cuts a command for a table.
func shorten(s string, n int) string {
	r := []rune(strings.TrimSpace(s))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n-1]) + "…"
}
