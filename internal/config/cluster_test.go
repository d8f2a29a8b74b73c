package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestClusterSettings: mistakes are refused with the flag's name, before anything starts.
func TestClusterSettings(t *testing.T) {
	withoutVariables(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := "--cluster nats://127.0.0.1:4222 --cluster-listen 127.0.0.1:0 --cluster-secret " + secret
	for flags, want := range map[string]string{
		good: "",
		good + " --node n-1.example --node-label zone=a,gpu=1 --node-label rack=r/7 --no-sessions --public-url https://n1.example:8443": "",
		good + " --cluster-listen 0.0.0.0:1 --cluster-advertise wss://10.0.0.1:1":                                                       "",
		good + " --cluster tls://nats.example:4222":                                                                                     "",
		good + " --cluster nats://10.0.0.1:4222 --insecure":                                                                             "",
		good + " --cluster nats://10.0.0.1:4222":                                                                                        "--cluster",
		good + " --cluster http://10.0.0.1":                                                                                             "--cluster",
		good + " --cluster-listen :1":                                                                                                   "--cluster-listen",
		good + " --cluster-listen nowhere":                                                                                              "--cluster-listen",
		good + " --cluster-advertise https://a:1":                                                                                       "--cluster-advertise",
		good + " --cluster-advertise ws://10.0.0.1:1":                                                                                   "--cluster-advertise",
		good + " --cluster-advertise ws://127.0.0.1:1":                                                                                  "",
		good + " --cluster-ca " + secret:                                                                                                "--cluster-ca",
		good + " --cluster-secret nowhere":                                                                                              "--cluster-secret",
		good + " --cluster-nats-creds /nowhere":                                                                                         "--cluster-nats-creds",
		good + " --cluster-nats-ca /nowhere":                                                                                            "--cluster-nats-ca",
		good + " --node a/b":                                                                                                            "--node",
		good + " --node-label a":                                                                                                        "--node-label",
		good + " --node-label a=1,a=2":                                                                                                  "--node-label",
		good + " --node-label node=x":                                                                                                   "--node-label",
		good + " --public-url ftp://x":                                                                                                  "--public-url",
		"--cluster nats://127.0.0.1:4222":                                                                                               "--cluster-listen",
		"--cluster nats://127.0.0.1:4222 --cluster-listen [::1]:0":                                                                      "--cluster-secret",
		"--cluster-secret " + secret:                                                                                                    "--cluster-secret",
		good + " --on-term move":                                                                                                        "",
		"--on-term move":                                                                                                                "--on-term",
		"--no-sessions":                                                                                                                 "--no-sessions",
		"--node n1 --public-url https://n1.example":                                                                                     "",
	} {
		var s Settings
		f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		s.Define(f)
		if err := f.Parse(strings.Fields(flags)); err != nil {
			t.Fatal(err)
		}
		err := s.load(f)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", flags, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want a complaint about %s", flags, err, want)
		}
	}
}

// TestNoSessions: the pool of a node without sessions has no room and starts no shells.
func TestNoSessions(t *testing.T) {
	var s Settings
	f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.Define(f)
	s.Cluster.NoSessions = true
	if c := s.PoolConfig(); c.MaxSessions >= 0 || c.WarmShells != 0 || s.Pool.MaxSessions == c.MaxSessions {
		t.Errorf("%+v", c)
	}
}
