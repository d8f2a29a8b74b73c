package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"trl/internal/bench/figure"
)

// Idle is the content of idle.json: what sessions cost that do nothing.
type Idle struct {
	Machine figure.Machine `json:"machine"`
	Rows    []IdleRow      `json:"rows"`
	Stopped string         `json:"stopped,omitempty"` // the error at the machine's limits

	Connections []ConnectionsRow `json:"connections,omitempty"`
}

// An IdleRow is one number of sessions with one shell, at one moment. Everything is in addition to what an empty gateway has.
type IdleRow struct {
	What       string          `json:"what"`
	Sessions   int             `json:"sessions"`
	Files      [2]int          `json:"descriptors"` // of the gateway and of the keeper
	Kinds      string          `json:"kinds"`       // of these descriptors, for one session
	PSS        float64         `json:"pss_bytes"`   // of the whole process tree
	Kernel     float64         `json:"kernel_bytes"`
	RSS        [2]float64      `json:"rss_bytes"`        // of the gateway and of the keeper, in all
	CPU        [2]float64      `json:"idle_cpu_percent"` // likewise; 0 right after the commands
	Create     figure.Measured `json:"create_ns"`        // of more sessions, at the end
	PerSession float64         `json:"pss_per_session_bytes"`
	KernelEach float64         `json:"kernel_per_session_bytes"`
}

// idleCost measures idle sessions: before their first command, after it, and when they have rested.
func idleCost() error {
	var r Idle
	files := openFiles()
	for _, shell := range []string{"/bin/sh", "/bin/bash"} {
		for _, n := range counts(*sizes) {
			gw := gateway("--idle-timeout", "0", "--warm", "0")
			err := caught(func() error { idleRows(gw, &r, shell, n, files); return nil })
			gw.stop()
			if err != nil {
				r.Stopped = fmt.Sprintf("%d × %s: %v", n, shell, err)
				fmt.Println(r.Stopped)
			}
			if err := save("idle", r); err != nil { // what is measured so far
				return err
			}
		}
	}
	if err := caught(func() error { idleConnections(&r, *connections); return nil }); err != nil {
		fmt.Println(err)
	}
	return save("idle", r)
}

func idleRows(gw *child, r *Idle, shell string, n int, files uint64) {
	const (
		quiet   = time.Second      // for snapshots
		rested  = 15 * time.Second // a session rests after 10 s
		watched = 10 * time.Second
		more    = 50
	)
	keeper := gw.cmd.Process.Pid
	c := dial(gw.addr + "/v1/ws")
	defer c.CloseNow()
	if r.Machine.Tier == "" {
		r.Machine = machine(tier(c))
		fmt.Printf("%v; %d open files a process\n\n", r.Machine, files)
	}
	destroy := func(id string) { ask(c, "session.destroy", map[string]any{"session_id": id, "force": true}, nil) }
	destroy(session(c, shell)) // opens what the gateway opens once
	time.Sleep(quiet)
	edge := gatewayOf(keeper)
	before, kernelBefore, kindsBefore := treeOf(keeper), kernelMemory(), fileKinds(edge, keeper)
	filesBefore := [2]int{status(edge).descriptors, status(keeper).descriptors}
	look := func(what string, watched time.Duration, more int) {
		row := IdleRow{What: fmt.Sprintf("%d × %s, %s", n, shell, what), Sessions: n}
		if watched > 0 {
			g, k, began := cpu(edge), cpu(keeper), time.Now()
			time.Sleep(watched)
			past := time.Since(began).Seconds()
			row.CPU = [2]float64{100 * (cpu(edge) - g).Seconds() / past, 100 * (cpu(keeper) - k).Seconds() / past}
		}
		row.PSS, row.Kernel = treeOf(keeper).pss-before.pss, kernelMemory()-kernelBefore
		row.PerSession, row.KernelEach = row.PSS/float64(n), row.Kernel/float64(n)
		gu, ku := status(edge), status(keeper)
		row.RSS, row.Files = [2]float64{gu.rss, ku.rss}, [2]int{gu.descriptors - filesBefore[0], ku.descriptors - filesBefore[1]}
		row.Kinds = kindsOfOne(fileKinds(edge, keeper), kindsBefore, n)
		var created figure.Samples
		for range more {
			start := time.Now()
			id := session(c, shell)
			created.Add(time.Since(start))
			destroy(id)
		}
		if more > 0 {
			row.Create = figure.Measure(created)
		}
		r.Rows = append(r.Rows, row)
		mem := figure.Bytes.Format
		fmt.Printf("%-44s descriptors %6.2f + %5.2f  PSS %9s  kernel %9s  RSS %9s + %9s  CPU %.2f %% + %.2f %%  create %9s\n    %s\n", row.What, float64(row.Files[0])/float64(n), float64(row.Files[1])/float64(n),
			mem(row.PerSession), mem(row.KernelEach), mem(row.RSS[0]), mem(row.RSS[1]), row.CPU[0], row.CPU[1], figure.Nanoseconds.Format(row.Create.Median), row.Kinds)
	}
	ids := make([]string, n)
	for i := range ids {
		if err := caught(func() error { ids[i] = session(c, shell); return nil }); err != nil {
			panic(fmt.Sprintf("after %d: %v", i, err))
		}
	}
	time.Sleep(rested)
	look("idle", watched, 0)
	for _, id := range ids {
		ask(c, "exec.run", map[string]any{"session_id": id, "command": ":"}, nil)
	}
	time.Sleep(quiet)
	look("after a command", 0, 0)
	time.Sleep(rested)
	look("idle again", watched, more)
}

func idleTable(r Idle) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n\n| sessions | descriptors a session, gateway + keeper | PSS a session | kernel memory a session | RSS, gateway + keeper | idle CPU, gateway + keeper | create |\n|-|-:|-:|-:|-:|-:|-:|\n", r.Machine)
	mem := func(v float64) string { return fmt.Sprintf("%.0f KiB", v/1024) }
	for _, t := range r.Rows {
		cpu, create := "", ""
		if t.What[strings.LastIndex(t.What, ",")+1:] != " after a command" {
			cpu = fmt.Sprintf("%.2f + %.2f %%", t.CPU[0], t.CPU[1])
		}
		if t.Create.Median > 0 {
			create = figure.Nanoseconds.Format(t.Create.Median)
		}
		n := float64(t.Sessions)
		fmt.Fprintf(&b, "| %s | %.2f + %.2f | %s | %s | %s + %s | %s | %s |\n", t.What, float64(t.Files[0])/n, float64(t.Files[1])/n, mem(t.PerSession), mem(t.KernelEach),
			figure.Bytes.Format(t.RSS[0]), figure.Bytes.Format(t.RSS[1]), cpu, create)
	}
	if r.Stopped != "" {
		fmt.Fprintf(&b, "\nStopped: %s.\n", r.Stopped)
	}
	if r.Connections != nil {
		b.WriteString(connectionsTable(r.Connections))
	}
	return b.String()
}

// kernelMemory is the memory that the kernel has for all processes, in bytes: of other programs, too.
func kernelMemory() (sum float64) {
	text := must(os.ReadFile("/proc/meminfo"))
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line))
		if len(f) == 3 && slices.Contains([]string{"Slab:", "KernelStack:", "PageTables:", "Percpu:", "Shmem:"}, f[0]) {
			sum += 1024 * must(strconv.ParseFloat(f[1], 64))
		}
	}
	return sum
}

var number = regexp.MustCompile(`[0-9]+`)

// fileKinds counts the descriptors of the processes by what they are.
func fileKinds(pids ...int) map[string]int {
	kinds := map[string]int{}
	for i, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			file, err := os.Readlink(dir + "/" + e.Name())
			if err != nil {
				continue
			}
			if at := strings.LastIndexByte(file, '/'); strings.Contains(file, "cgroup") && at > 0 {
				file = file[at+1:]
			}
			kinds[[]string{"gateway: ", "keeper: "}[i]+strings.TrimSuffix(strings.Trim(number.ReplaceAllString(file, ""), ":[]"), " (deleted)")]++
		}
	}
	return kinds
}

// kindsOfOne lists how many descriptors of each kind one of n sessions has.
func kindsOfOne(now, before map[string]int, n int) string {
	var all []string
	for _, kind := range slices.Sorted(maps.Keys(now)) {
		if each := float64(now[kind]-before[kind]) / float64(n); each > 0.1 {
			all = append(all, fmt.Sprintf("%.3g %s", each, kind))
		}
	}
	return strings.Join(all, ", ")
}
