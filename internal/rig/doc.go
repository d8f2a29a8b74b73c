// Package rig starts real gateways for tests and drives them from outside, through their WebSocket. The acceptance tests use it.
//
//	g := rig.Shared(t, "a")            one gateway for a whole file, stopped after the last test; or
//	g := rig.Gateway(t, "--warm", "0") one of this test's own, stopped and checked in its Cleanup
//	c := g.Dial(t)                     a WebSocket connection, closed in Cleanup; several goroutines may use it
//	s := c.Session(rig.Object{"shell": sh})
//	r := c.Run(s, "echo hi", rig.Object{"timeout_s": 2})     exec.run, which must succeed
//	rig.Expect(t, r, 0, "hi\n", "")
//	f := c.Try("exec.run", rig.Object{…}); f.Code()          an answer that may be a refusal
//	data, exit := c.Output(c.Stream(s, "seq 9").Str("stream_id"), 0)
//	rig.EachShell(t, func(t *testing.T, sh string) { … })    subtests under /bin/sh and /bin/bash; dial inside the
//	                                                         subtest, since a client fails the test it was made with
//	nap := rig.Sleeper(); …; rig.Running(nap)                a command line that no other test uses, and who runs it
//
// Several test binaries may run at once: a test counts only the processes, files and cgroups of its own gateways.
package rig
