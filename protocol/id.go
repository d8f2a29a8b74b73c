package protocol

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

var idPrefix = []byte(`{"id":`)

// SplitAnswer returns the id of an answer as it is written, and what follows it. It returns nothing if the message is no answer with an id.
func SplitAnswer(msg []byte) (id, rest []byte) {
	p, ok := bytes.CutPrefix(msg, idPrefix)
	if !ok || len(p) == 0 {
		return nil, nil
	}
	n := bytes.IndexByte(p, ',')
	if p[0] == '"' {
		for n = 1; n < len(p) && p[n] != '"'; n++ {
			if p[n] == '\\' {
				n++
			}
		}
		n++
	}
	if n < 0 || n > len(p) {
		return nil, nil
	}
	return p[:n], p[n:]
}

// SameID compares two ids as JSON values: "a" equals "\u0061", and 1 equals 1.0. Numbers are compared exactly, whatever their number of digits.
func SameID(a, b jsontext.Value) bool {
	switch {
	case bytes.Equal(a, b):
		return true
	case a.Kind() != b.Kind():
		return false
	case a.Kind() == '0':
		x, ok := decimalOf(string(a))
		y, same := decimalOf(string(b))
		return ok && same && x == y
	}
	a, b = a.Clone(), b.Clone()
	return a.Canonicalize() == nil && b.Canonicalize() == nil && bytes.Equal(a, b)
}

// decimal is ± 0.DIGITS × 10^exponent. Neither the first nor the last digit is 0; zero has no digits.
type decimal struct {
	negative bool
	digits   string
	exponent int64
}

// decimalOf reads a JSON number. ok is false for an exponent that does not fit.
func decimalOf(text string) (d decimal, ok bool) {
	text, d.negative = strings.CutPrefix(text, "-")
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		n, err := strconv.ParseInt(text[i+1:], 10, 32)
		if err != nil {
			return d, false
		}
		text, d.exponent = text[:i], n
	}
	whole, fraction, _ := strings.Cut(text, ".")
	d.exponent += int64(len(whole))
	d.digits = strings.TrimLeft(whole+fraction, "0")
	d.exponent -= int64(len(whole) + len(fraction) - len(d.digits))
	d.digits = strings.TrimRight(d.digits, "0")
	if d.digits == "" {
		return decimal{}, true
	}
	return d, true
}
