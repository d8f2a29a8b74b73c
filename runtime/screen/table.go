package screen

// table holds what cells have beyond their 16 bytes: characters of several runes, links, and the colours of underlines. A
// cell refers to an entry by its index. Entries that no cell uses any more are removed when the table is full; if that
// is of no use, what does not fit is left out.
type table struct {
	clusters  []string
	extras    []extra // the first one is empty
	clusterOf map[string]uint32
	extraOf   map[extra]uint32
	asked     int // entries asked for in vain since the last sweep
}

type extra struct {
	link      string // parameters and address, as in OSC 8
	underline color
}

const (
	maxClusters = 8 << 10
	maxExtras   = 512
	// maxCluster bounds the bytes of one character: a family of emoji has 25.
	maxCluster = 32
	// maxLink is that of VTE and tmux for an address.
	maxLink = 2083
)

func newTable() table {
	return table{extras: make([]extra, 1), clusterOf: map[string]uint32{}, extraOf: map[extra]uint32{{}: 0}}
}

// cluster returns the cell.char of a character of several runes, false if there is no place for it.
func (s *Screen) cluster(text string) (uint32, bool) {
	t := &s.table
	i, ok := t.clusterOf[text]
	if !ok {
		if len(t.clusters) >= maxClusters && !s.removeUnused() || len(t.clusters) >= maxClusters {
			return 0, false
		}
		i = uint32(len(t.clusters))
		t.clusters = append(t.clusters, text)
		t.clusterOf[text] = i
	}
	return cluster | i, true
}

// extra returns the index of a link and an underline's colour, 0 if there is no place for it.
func (s *Screen) extra(e extra) uint32 {
	t := &s.table
	i, ok := t.extraOf[e]
	if !ok {
		if len(t.extras) >= maxExtras && !s.removeUnused() || len(t.extras) >= maxExtras {
			return 0
		}
		i = uint32(len(t.extras))
		t.extras = append(t.extras, e)
		t.extraOf[e] = i
	}
	return i
}

// removeUnused removes the entries that nothing uses. It looks at every cell, so it is only done after a number of vain
// requests that grows with the cells (work).
func (s *Screen) removeUnused() bool {
	old := s.table
	if s.table.asked++; s.table.asked < s.work() {
		return false
	}
	s.table = newTable()
	visit := func(c *cell) {
		if c.char&cluster != 0 {
			text := old.clusters[c.char&^cluster]
			i, ok := s.table.clusterOf[text]
			if !ok {
				i = uint32(len(s.table.clusters))
				s.table.clusters = append(s.table.clusters, text)
				s.table.clusterOf[text] = i
			}
			c.char = cluster | i
		}
		if n := c.style >> extraShift; n != 0 {
			e := old.extras[n]
			i, ok := s.table.extraOf[e]
			if !ok {
				i = uint32(len(s.table.extras))
				s.table.extras = append(s.table.extras, e)
				s.table.extraOf[e] = i
			}
			c.style = c.style&(1<<extraShift-1) | style(i)<<extraShift
		}
	}
	for _, g := range []*grid{s.main, s.alt} {
		for i := range g.store {
			r := &g.store[i]
			if r.gen != g.gen {
				continue
			}
			visit(&r.fill)
			for x := range r.cells {
				visit(&r.cells[x])
			}
		}
		visit(&g.fill)
		visit(&g.saved.pen)
	}
	visit(&s.pen)
	visit(&s.last)
	return true
}

// work is about how many requests pay for a sweep: one for each 128 cells that it looks at.
func (s *Screen) work() int { return (s.main.allocated+s.alt.allocated)/128 + 64 }
