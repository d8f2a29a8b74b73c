package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"trl/internal/bench/figure"
	"trl/internal/bench/peer"
)

// Peers is the content of peers.json: trl beside other servers that somebody has running on this machine, and beside the floors.
type Peers struct {
	Machine     figure.Machine `json:"machine"`
	Repetitions int            `json:"repetitions"`
	Foreign     [2]float64     `json:"foreign_cpu_percent"` // of the machine, by processes that are not measured: in all, and the most in a repetition
	Names       []string       `json:"names"`
	Missing     []string       `json:"missing,omitempty"`
	Notes       []string       `json:"notes,omitempty"`
	Rows        []PeerRow      `json:"rows"`
}

// A PeerRow is one figure of all peers. A peer without a cell cannot do it.
type PeerRow struct {
	Name  string              `json:"name"`
	Unit  figure.Unit         `json:"unit"`
	Cells map[string]PeerCell `json:"cells"`
}

// A PeerCell has a value of each repetition.
type PeerCell struct {
	Values figure.Samples `json:"values"`
	Failed string         `json:"failed,omitempty"`
}

// Units that only this table has.
const (
	kibibytes figure.Unit = "KiB"
	mebibytes figure.Unit = "MiB"
	number1   figure.Unit = ""
)

// target is a server that is measured.
type target struct {
	name  string
	p     peer.Peer
	roots []int // the processes at its listening socket; empty: unknown
	hung  int   // how often

	remarks []string // about the trial that runs
}

// effort is how much is measured.
type effort struct {
	repetitions, connects, keys, commands, creates, agentRounds, crew, idle int
	bytes                                                                   int           // of a stream
	busy                                                                    time.Duration // of 16 sessions at the same time
	rest                                                                    time.Duration // of idle ones
}

var (
	whole = effort{repetitions: 5, connects: 10, keys: 2000, commands: 500, creates: 20, agentRounds: 5, crew: 16, idle: 50, bytes: 64 << 20, busy: time.Second, rest: 11 * time.Second}
	least = effort{repetitions: 1, connects: 2, keys: 20, commands: 10, creates: 2, agentRounds: 1, crew: 2, idle: 2, bytes: 1 << 20, busy: 50 * time.Millisecond, rest: 100 * time.Millisecond}
)

// longestTrial bounds one repetition with one peer. A peer that hangs is left out of that figure, and of all that follow when it hangs again.
const longestTrial = time.Minute

// besidePeers measures the peers of -peers beside trl and the floors.
func besidePeers() error {
	others, err := parsePeers(*peersFlag)
	if err != nil {
		return err
	}
	floor, gw := start(must(os.Executable()), "echo"), gateway("--idle-timeout", "0")
	defer floor.stop()
	defer gw.stop()
	all := []*target{}
	for _, own := range []*child{floor, gw} {
		kind := []string{"floor", "trl"}[len(all)]
		all = append(all, &target{name: kind, p: must(peer.New(kind, hostOf(own.addr))), roots: []int{own.cmd.Process.Pid}})
	}
	c := dial(gw.addr + "/v1/ws")
	r := Peers{Machine: machine(tier(c))}
	c.CloseNow()
	e := whole
	e.repetitions = max(1, *repetitions)
	if *quick {
		e = least
	}
	all = append(all, r.find(others)...)
	if err := r.measure(os.Stdout, all, e); err != nil {
		return err
	}
	return r.failedOf("floor", "trl")
}

// hostOf is the HOST:PORT of one of our servers.
func hostOf(url string) string { return strings.TrimPrefix(url, "ws://") }

// namedPeer is one peer of -peers.
type namedPeer struct{ name, kind, address string }

// parsePeers reads KIND=HOST:PORT and KIND@LABEL=HOST:PORT. Only addresses on this machine are allowed, since we send load to them.
func parsePeers(list string) (all []namedPeer, err error) {
	for _, word := range strings.Fields(list) {
		name, address, ok := strings.Cut(word, "=")
		if !ok {
			return nil, fmt.Errorf("-peers: %q is not NAME=ADDRESS", word)
		}
		kind, _, _ := strings.Cut(name, "@")
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, fmt.Errorf("-peers: %s: %w", name, err)
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return nil, fmt.Errorf("-peers: %s: %s is not a loopback address", name, host)
		}
		if !slices.Contains(peer.Kinds(), kind) {
			return nil, fmt.Errorf("-peers: unknown peer %q: there are %s", kind, strings.Join(peer.Kinds(), ", "))
		}
		if slices.ContainsFunc(all, func(p namedPeer) bool { return p.name == name }) || name == "trl" || name == "floor" {
			return nil, fmt.Errorf("-peers: %s is there twice: write %s@LABEL", name, kind)
		}
		all = append(all, namedPeer{name, kind, address})
	}
	return all, nil
}

// find returns the peers that accept connections, and names the others.
func (r *Peers) find(peers []namedPeer) (there []*target) {
	for _, p := range peers {
		c, err := net.DialTimeout("tcp", p.address, 2*time.Second)
		if err != nil {
			r.Missing = append(r.Missing, fmt.Sprintf("%s is missing: nothing accepts connections at %s", p.name, p.address))
			continue
		}
		port := c.RemoteAddr().(*net.TCPAddr).Port
		c.Close()
		t := &target{name: p.name, p: must(peer.New(p.kind, p.address))}
		if t.roots, err = listeners(port); err != nil {
			r.note("%s: memory, descriptors and processor time are unknown: %v", p.name, err)
		}
		there = append(there, t)
	}
	return there
}

func (r *Peers) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.Notes, text) {
		r.Notes = append(r.Notes, text)
	}
}

// measure makes all rows, and prints and saves each when it is known.
func (r *Peers) measure(w io.Writer, all []*target, e effort) error {
	r.Repetitions = e.repetitions
	for _, t := range all {
		r.Names = append(r.Names, t.name)
	}
	fmt.Fprintf(w, "%v\n\n", r.Machine)
	for _, m := range r.Missing {
		fmt.Fprintln(w, m)
	}
	fmt.Fprint(w, r.header())
	var foreign foreignCPU
	for _, trial := range trials(e) {
		values := map[string][]figure.Samples{}
		failed := map[string]string{}
		for round := range e.repetitions {
			for i := range all {
				t := all[(i+round)%len(all)]
				if failed[t.name] != "" || t.hung > 1 {
					continue
				}
				watch := foreign.watch(all)
				got, err := trial.once(t)
				watch()
				switch {
				case errors.Is(err, peer.ErrCannot):
					continue
				case err != nil:
					failed[t.name] = err.Error()
					if errors.Is(err, context.DeadlineExceeded) {
						if t.hung++; t.hung > 1 {
							r.note("%s hung twice and was left out of what follows.", t.name)
						}
					}
					continue
				}
				values[t.name] = append(values[t.name], got)
			}
		}
		for _, t := range all {
			if len(t.remarks) > 0 {
				r.note("%s (%d times)", t.remarks[0], len(t.remarks))
			}
			t.remarks = nil
		}
		r.Foreign = [2]float64{100 * float64(foreign.used) / float64(max(foreign.past, 1)), foreign.most}
		if err := r.add(w, trial.rows, values, failed); err != nil {
			return err
		}
	}
	for _, kind := range idleKinds {
		values, failed := idlePeers(all, kind, e)
		if err := r.add(w, kind.rows(), values, failed); err != nil {
			return err
		}
	}
	if err := r.add(w, []PeerRow{peakRow}, peaks(all), nil); err != nil {
		return err
	}
	fmt.Fprint(w, r.footer())
	return nil
}

// add makes rows of the values of all repetitions. A value that is not a number is unknown.
func (r *Peers) add(w io.Writer, rows []PeerRow, values map[string][]figure.Samples, failed map[string]string) error {
	for i, row := range rows {
		row.Cells = map[string]PeerCell{}
		for name, got := range values {
			var cell PeerCell
			for _, v := range got {
				if !math.IsNaN(v[i]) {
					cell.Values = append(cell.Values, v[i])
				}
			}
			if len(cell.Values) > 0 {
				row.Cells[name] = cell
			}
		}
		for name, why := range failed {
			row.Cells[name] = PeerCell{Failed: why}
		}
		r.Rows = append(r.Rows, row)
		fmt.Fprint(w, r.line(row))
	}
	return save("peers", r)
}

// failedOf is an error if one of the named servers, which are ours, failed.
func (r *Peers) failedOf(names ...string) (err error) {
	for _, row := range r.Rows {
		for _, name := range names {
			if why := row.Cells[name].Failed; why != "" {
				err = errors.Join(err, fmt.Errorf("%s: %s: %s", name, row.Name, why))
			}
		}
	}
	return err
}

// once runs a trial with one peer.
func (t *trial) once(at *target) (figure.Samples, error) {
	ctx, cancel := context.WithTimeout(ctx, longestTrial)
	defer cancel()
	return t.run(ctx, at)
}

func (r *Peers) header() string {
	return "\n| | " + strings.Join(r.Names, " | ") + " |\n|-" + strings.Repeat("|-:", len(r.Names)) + "|\n"
}

// line is a row of the table. The best of all but the floor is bold if there is more than one.
func (r *Peers) line(row PeerRow) string {
	best, compared := "", 0
	for _, name := range r.Names {
		c, ok := row.Cells[name]
		if name == "floor" || !ok || c.Failed != "" {
			continue
		}
		compared++
		if best == "" || better(row.Unit, c.Values.Median(), row.Cells[best].Values.Median()) {
			best = name
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |", row.Name)
	for _, name := range r.Names {
		c, ok := row.Cells[name]
		switch {
		case !ok:
			b.WriteString(" – |")
		case c.Failed != "":
			b.WriteString(" failed |")
		case name == best && compared > 1:
			fmt.Fprintf(&b, " **%s** |", c.format(row.Unit))
		default:
			fmt.Fprintf(&b, " %s |", c.format(row.Unit))
		}
	}
	return b.String() + "\n"
}

// better compares two values in a unit.
func better(u figure.Unit, a, b float64) bool {
	if u == figure.PerSecond || u == figure.MBPerSecond {
		return a > b
	}
	return a < b
}

// format writes the median and the range, in the size of unit that suits the median.
func (c PeerCell) format(u figure.Unit) string {
	low, mid, high := c.Values.Quantile(0), c.Values.Median(), c.Values.Quantile(1)
	unit, scale := string(u), 1.0
	switch {
	case u == figure.PerSecond:
		unit = "/s"
	case u == figure.Nanoseconds && mid >= 1e9:
		unit, scale = "s", 1e9
	case u == figure.Nanoseconds && mid >= 1e6:
		unit, scale = "ms", 1e6
	case u == figure.Nanoseconds:
		unit, scale = "µs", 1e3
	}
	show := func(v float64) string {
		digits := 0
		switch v /= scale; {
		case math.Abs(mid/scale) < 10:
			digits = 2
		case math.Abs(mid/scale) < 100:
			digits = 1
		}
		return fmt.Sprintf("%.*f", digits, v)
	}
	text := strings.TrimSpace(show(mid) + " " + unit)
	if len(c.Values) > 1 {
		text += fmt.Sprintf(" [%s..%s]", show(low), show(high))
	}
	return text
}

// footer is what stands below the table.
func (r *Peers) footer() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nMedian [least..most] of %d; the best besides the floor is bold; a dash: the peer's protocol has no such thing. Other programs used %.0f %% of the processors, at most %.0f %% during a repetition.\n",
		r.Repetitions, r.Foreign[0], r.Foreign[1])
	failures := map[string]bool{}
	for _, row := range r.Rows {
		for _, name := range r.Names {
			if why := row.Cells[name].Failed; why != "" && !failures[name+why] {
				failures[name+why] = true
				first, _, _ := strings.Cut(why, "\n")
				fmt.Fprintf(&b, "\n%s failed at “%s”: %s\n", name, row.Name, first)
			}
		}
	}
	for _, n := range slices.Concat(r.Missing, r.Notes) {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	return b.String()
}

func peersTable(r Peers) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n%s", r.Machine, r.header())
	for _, row := range r.Rows {
		b.WriteString(r.line(row))
	}
	return b.String() + r.footer()
}

// foreignCPU is the processor time that other programs used during repetitions. past is the time of all processors.
type foreignCPU struct {
	used, past time.Duration
	most       float64 // of a repetition that was long enough, in percent
}

// watch begins to watch a repetition; the function that it returns ends that.
func (f *foreignCPU) watch(all []*target) func() {
	own := func() time.Duration {
		t := processTable()
		sum := processorTime()
		for _, at := range all {
			sum += t.cpu(at.roots)
		}
		return sum
	}
	began, busy, ours := time.Now(), machineTime(), own()
	return func() {
		used := max(0, machineTime()-busy-(own()-ours))
		past := time.Since(began) * time.Duration(runtime.NumCPU())
		f.used += used
		f.past += past
		if past > time.Second { // the kernel counts in hundredths of a second
			f.most = max(f.most, 100*float64(used)/float64(past))
		}
	}
}
