package runtime
import "testing"
func TestDbg(t *testing.T) {
	h := testHost(t, "auto")
	s := openSession(t, h, "/bin/sh")
	s.run("cd /usr; V=1; export W=2")
	p := s.proc()
	r := s.run("exit 3")
	t.Logf("%v %v", r.Outcome, p.exit)
	t.Logf("%s", content(s.st.exit))
	t.Logf("LAST %q", s.st.last)
	t.Logf("SCRIPT %s", posixScript(s.st.last))
}
