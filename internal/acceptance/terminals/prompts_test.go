package terminals

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"trl/internal/rig"
)

// Prompts for passwords come on the terminal.
func TestPasswordPromptsAreOnTheTerminal(t *testing.T) {
	c := rig.Shared(t, "h").Dial(t)
	s := c.Session(object{"shell": "/bin/bash"})
	h := c.OpenTerminal(s, object{"command": `python3 -c 'import getpass; print("got", getpass.getpass("Secret: "))'`})
	h.Expect("Secret: ")
	h.Keys("abc\r")
	h.Expect("got abc")
	// /dev/tty is the terminal, also with everything else redirected.
	h = c.OpenTerminal(s, object{"command": "sh -c 'echo via tty >/dev/tty' </dev/null >/dev/null 2>&1"})
	h.Expect("via tty")
}

// sudo asks at /dev/tty, without echo, and Ctrl-C ends it.
func TestSudoAsksOnTheTerminal(t *testing.T) {
	rig.OnlyRoot(t) // so that somebody is asked who is not asked here
	if slices.Contains(rig.FlagsOfAll, "--allow-write") {
		t.Skip("sudo does not work under Landlock")
	}
	for _, name := range []string{"sudo", "setpriv"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("no %s here", name)
		}
	}
	c := rig.Shared(t, "h").Dial(t)
	h := c.OpenTerminal(c.Session(object{"shell": "/bin/bash"}), plain, object{"env": object{"PS1": "shell> "}})
	h.Expect("shell> ")
	h.Keys("setpriv --reuid=65534 --regid=65534 --clear-groups sudo -k -p 'Pass''word? ' true </dev/null\r")
	h.Expect(`Password\? `)
	h.TypeSecret()
	h.Ask("term.close", object{"kill_grace_s": 0.5})
}

// ssh asks about the host's key, and for a password, of a server that we have here. make deps does not install it: that
// would start one for everybody.
func TestSSHAsksOnTheTerminal(t *testing.T) {
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		sshd = "/usr/sbin/sshd"
	}
	for _, name := range []string{sshd, "ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("no %s here", name)
		}
	}
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where sshd shuts itself up; Debian makes it at boot
			t.Fatal(err)
		}
	}
	// One connection over stdin and stdout (-i): no port to be found, nothing to be ended.
	proxy := sshd + " -i -f /dev/null -h " + key + " -o UsePAM=no -o PasswordAuthentication=yes -o PidFile=none -o LogLevel=QUIET"
	c := rig.Shared(t, "h").Dial(t)
	h := c.OpenTerminal(c.Session(object{"shell": "/bin/bash"}), plain, object{"env": object{"PS1": "shell> "}})
	h.Expect("shell> ")
	h.Keys("ssh -F none -o ProxyCommand='" + proxy + "' -o UserKnownHostsFile=" + dir + "/known -o PreferredAuthentications=password nobody@here\r")
	h.Expect(`Are you sure you want to continue connecting`)
	h.Keys("yes\r")
	h.Expect(`Permanently added`)
	h.Expect(`password: `)
	h.TypeSecret()
	if known, err := os.ReadFile(filepath.Join(dir, "known")); err != nil || len(known) == 0 {
		t.Errorf("known hosts: %q %v", known, err)
	}
	h.Ask("term.close", object{"kill_grace_s": 0.5})
}
