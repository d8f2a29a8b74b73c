package protocol

// NoSuchMethod answers a request for an unknown method.
func NoSuchMethod(name string) *Error {
	var names []string
	for _, m := range methods {
		names = append(names, m.Name)
	}
	e := Errorf(UnknownMethod, "unknown method %q", printable(name))
	if near := Nearest(name, names); near != "" {
		e = Errorf(UnknownMethod, "unknown method %q (%s?)", printable(name), near).With("nearest", near)
	}
	return e
}

// Nearest returns the one of names that somebody who wrote name may have meant; "": none is similar.
func Nearest(name string, names []string) string {
	best, least := "", 1+max(1, len(name)/3)
	if len(name) > 64 { // no name of ours is this long
		return ""
	}
	for _, n := range names {
		if d := distance(name, n); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance returns how many bytes must be changed, added, removed or swapped with the next one to turn a into b. It computes one row of the table at a
// time.
func distance(a, b string) int {
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, above, row = above, row, before
		row[0] = i + 1
		for j := range len(b) {
			same := above[j]
			if a[i] != b[j] {
				same++
			}
			row[j+1] = min(same, row[j]+1, above[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}
