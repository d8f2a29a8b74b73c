package screen

// cell is one character on the screen. It has 16 bytes.
type cell struct {
	char   uint32 // a rune, 0 for a blank, right, or cluster plus an index into table.clusters
	fg, bg color
	style  style
}

const (
	right   = 1 << 30 // cell.char: the right half of the wide character to the left
	cluster = 1 << 31 // cell.char: a bit; several runes make one character
)

// color is 0 for the default colour, indexed plus a palette index, or rgb plus 24 bits.
type color uint32

const (
	indexed color = 1 << 24
	rgb     color = 2 << 24
)

// style holds the attributes of a cell: one bit for each of attributes, the kind of underline in 3 bits, whether the
// character is wide, and in the upper half an index into table.extras, 0 for none.
type style uint32

const (
	underlineShift       = 8
	underlineMask  style = 7 << underlineShift
	wide           style = 1 << 11
	attributeMask  style = 1<<underlineShift - 1
	extraShift           = 16
)

// blank is a cell that looks like that of an empty screen.
func (c *cell) blank() bool {
	return (c.char == 0 || c.char == ' ') && c.fg == 0 && c.bg == 0 && c.style == 0
}

// row is one line. Cells beyond the end of cells look like fill, so clearing a row costs the same at any width.
type row struct {
	cells []cell // grows with what is written, to at most the width
	fill  cell
	gen   uint32 // the grid's generation for which cells and fill hold
}

// grid is the main or the alternate screen. A scroll moves the row numbers in order, never the cells. Clearing the whole
// grid increments gen; a row learns of it when it is next used.
type grid struct {
	cols, rows int
	order      []uint16 // order[y] is the index in store of row y
	scratch    []uint16 // for rotate
	store      []row
	gen        uint32
	fill       cell // what rows of earlier generations look like

	x, y      int  // the cursor
	wrapNext  bool // the last column was written: the next character goes to the next line
	saved     saved
	top, bot  int // the scroll region, inclusive
	allocated int // cells in all of store
}

// saved is what DECSC saves.
type saved struct {
	x, y     int
	wrapNext bool
	pen      cell
	origin   bool
	charsets [2]bool
	shift    int
}

func newGrid(cols, rows int) *grid {
	g := &grid{cols: cols, rows: rows, order: make([]uint16, rows), scratch: make([]uint16, rows), store: make([]row, rows), bot: rows - 1}
	for y := range g.order {
		g.order[y] = uint16(y)
	}
	return g
}

// row returns row y as it is now.
func (g *grid) row(y int) *row {
	r := &g.store[g.order[y]]
	if r.gen != g.gen {
		r.cells, r.fill, r.gen = r.cells[:0], g.fill, g.gen
	}
	return r
}

// at returns the cell at x, y.
func (g *grid) at(x, y int) cell {
	if r := g.row(y); x < len(r.cells) {
		return r.cells[x]
	} else {
		return r.fill
	}
}

// span returns the cells from x to end of row y to write to. It splits the wide characters that only partly lie in them.
func (g *grid) span(y, x, end int) []cell {
	r := g.row(y)
	if n := len(r.cells); n < end {
		if cap(r.cells) < end {
			larger := make([]cell, n, min(g.cols, max(end, 2*cap(r.cells), 16)))
			g.allocated += cap(larger) - cap(r.cells)
			copy(larger, r.cells)
			r.cells = larger
		}
		r.cells = r.cells[:end]
		if n < x { // what is between x and end is about to be written
			fillCells(r.cells[n:x], r.fill)
		}
		if x < n {
			r.split(x)
		}
		return r.cells[x:end]
	}
	r.split(x)
	r.split(end)
	return r.cells[x:end]
}

// split blanks both halves of a wide character of which x is the right half.
func (r *row) split(x int) {
	if x > 0 && x < len(r.cells) && r.cells[x].char == right {
		for _, c := range []*cell{&r.cells[x-1], &r.cells[x]} {
			c.char, c.style = 0, c.style&^wide
		}
	}
}

// fillCells sets all cells to c. Copying what is already set makes it as fast as memory.
func fillCells(cells []cell, c cell) {
	if len(cells) == 0 {
		return
	}
	cells[0] = c
	for n := 1; n < len(cells); n *= 2 {
		copy(cells[n:], cells[:n])
	}
}

// clear makes the whole grid look like fill.
func (g *grid) clear(fill cell) {
	g.fill = fill
	if g.gen++; g.gen == 0 { // it wrapped around: rows of old generations would look current
		for i := range g.store {
			g.store[i].cells, g.store[i].fill = g.store[i].cells[:0], fill
			g.store[i].gen = 0
		}
	}
}

// clearRows makes the rows from y to end, exclusive, look like fill.
func (g *grid) clearRows(y, end int, fill cell) {
	if y == 0 && end == g.rows {
		g.clear(fill)
		return
	}
	for ; y < end; y++ {
		r := &g.store[g.order[y]]
		r.cells, r.fill, r.gen = r.cells[:0], fill, g.gen
	}
}

// erase makes the cells from x to end, exclusive, of row y look like fill.
func (g *grid) erase(y, x, end int, fill cell) {
	if x >= end {
		return
	}
	if x == 0 && end == g.cols {
		g.clearRows(y, y+1, fill)
		return
	}
	r := g.row(y)
	if end == g.cols && r.fill == fill {
		r.split(x)
		r.cells = r.cells[:min(x, len(r.cells))]
		return
	}
	fillCells(g.span(y, x, end), fill)
}

// scroll scrolls the rows from top to bot, inclusive, up by n, or down if n is negative, and clears those that come in.
func (g *grid) scroll(top, bot, n int, fill cell) {
	order := g.order[top : bot+1]
	h := len(order)
	switch {
	case n >= h || -n >= h:
		g.clearRows(top, bot+1, fill)
	case n > 0:
		gone := g.scratch[:copy(g.scratch, order[:n])]
		copy(order, order[n:])
		copy(order[h-n:], gone)
		g.clearRows(bot+1-n, bot+1, fill)
	case n < 0:
		gone := g.scratch[:copy(g.scratch, order[h+n:])]
		copy(order[-n:], order)
		copy(order, gone)
		g.clearRows(top, top-n, fill)
	}
}

// insert moves the cells from x on to the right by n. What leaves the row is gone.
func (g *grid) insert(y, x, n int, fill cell) {
	n = min(n, g.cols-x)
	r := g.row(y)
	if r.split(x); n <= 0 {
		return
	}
	if x < len(r.cells) || r.fill != fill {
		kept := min(max(len(r.cells)-x, 0), g.cols-x-n)
		if r.fill != fill { // the fill itself moves
			kept = g.cols - x - n
			g.extend(y, g.cols)
		} else {
			g.extend(y, x+n+kept)
		}
		r.split(x + kept) // a wide character of which only the left half stays
		copy(r.cells[x+n:x+n+kept], r.cells[x:x+kept])
		fillCells(r.cells[x:x+n], fill)
	}
}

// remove moves the cells right of x+n to the left by n.
func (g *grid) remove(y, x, n int, fill cell) {
	n = min(n, g.cols-x)
	r := g.row(y)
	r.split(x)
	r.split(x + n)
	if r.fill != fill {
		g.extend(y, g.cols)
	}
	if x >= len(r.cells) {
		return
	}
	kept := copy(r.cells[x:], r.cells[min(x+n, len(r.cells)):])
	if r.fill != fill {
		fillCells(r.cells[x+kept:], fill)
	} else {
		r.cells = r.cells[:x+kept]
	}
}

// extend makes the cells of row y at least n.
func (g *grid) extend(y, n int) {
	if r := g.row(y); len(r.cells) < n {
		was := len(r.cells)
		fillCells(g.span(y, was, n), r.fill)
	}
}

// resized is the grid in another size. Rows below the cursor go first when it gets lower, then those at the top.
func (g *grid) resized(cols, rows int) *grid {
	to := newGrid(cols, rows)
	first := max(0, g.y-rows+1)
	for y := range min(rows, g.rows-first) {
		from, r := g.row(first+y), to.row(y)
		r.fill = from.fill
		if g.cols < cols {
			r.fill = cell{}
			if from.fill != r.fill {
				g.extend(first+y, g.cols)
			}
		}
		from.split(cols)
		n := min(len(from.cells), cols)
		r.cells = append(make([]cell, 0, n), from.cells[:n]...)
		to.allocated += n
	}
	to.x, to.y = min(g.x, cols-1), g.y-first
	to.saved = g.saved
	to.saved.x, to.saved.y = min(g.saved.x, cols-1), max(0, min(g.saved.y-first, rows-1))
	return to
}
