package recent

// maxIDs is how many ids are remembered.
const maxIDs = 1024

// IDs remembers ids. The zero value has none. The caller guards it.
type IDs map[string]bool

// First remembers id, and reports whether it was not known.
func (s *IDs) First(id string) bool {
	known := (*s)[id]
	if *s == nil || len(*s) >= maxIDs {
		*s = IDs{}
	}
	(*s)[id] = true
	return !known
}
