package check

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Op9: a domain whose recipients are to be verified where nothing can ask is an error with its
// line; one that ta-smtp serves is not, and without ADDRESSVERIFY no domain is.
func TestOp9DomainThatNothingCanVerifyIsReported(t *testing.T) {
	for name, tt := range map[string]struct {
		conf, relay, scheduler string
		want                   []string // FILE:LINE of the errors
	}{
		"served":              {"ADDRESSVERIFY=relay\n", "example.net\n", "*/*\n\tinterval=1m\nsmtp/*\n\tcommand=\"ta-smtp $channel\"\n", nil},
		"by no clause":        {"ADDRESSVERIFY=relay\n", "example.com verify=no\nexample.net\n", "*/*\n\tinterval=1m\nlmtp/*\n\tcommand=\"ta-smtp $channel\"\n", []string{"relay:2"}},
		"by another program":  {"ADDRESSVERIFY=relay\n", "example.net\n", "*/*\n\tinterval=1m\nsmtp/*\n\tcommand=\"cat $channel\"\n", []string{"relay:1"}},
		"some":                {"ADDRESSVERIFY=some\n", "example.com\nexample.net verify=yes\n", "*/*\n\tinterval=1m\nlmtp/*\n\tcommand=\"ta-smtp $channel\"\n", []string{"relay:2"}},
		"not to be verified":  {"", "example.net\n", "*/*\n\tinterval=1m\nlmtp/*\n\tcommand=\"ta-smtp $channel\"\n", nil},
		"a virtual transport": {"ADDRESSVERIFY=virtual\nVIRTUALMAILBOXDOMAINS=virtual\nVIRTUALTRANSPORT=smtp![192.0.2.1]\n", "", "*/*\n\tinterval=1m\nlmtp/*\n\tcommand=\"ta-smtp $channel\"\n", []string{"virtual:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			assert.Must(t, os.WriteFile(dir+"/ta-smtp", []byte("#!/bin/sh\n"), 0o755))
			for file, text := range map[string]string{"zmailer.conf": "HOSTNAME=mx.example.org\nPOSTOFFICE=" + dir + "/po\nRELAYDOMAINS=relay\n" + tt.conf,
				"relay": tt.relay, "virtual": "virtual.example\n", "scheduler.conf": tt.scheduler, "routes": ". smtp!\n"} {
				assert.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
			}
			settings := assert.Get(config.Load(filepath.Join(dir, "zmailer.conf")))(t)
			errs, _ := config.Sort(checkRouter(settings))
			var got []string
			for _, err := range config.Errors(errs) {
				line := lineOf("router", err)
				if line.Remedy == "" || line.Cause == "" {
					t.Errorf("no remedy or cause: %+v", line)
				}
				got = append(got, filepath.Base(line.File)+":"+string(rune('0'+line.Line)))
			}
			assert.Equal(t, strings.Join(got, " "), strings.Join(tt.want, " "))
		})
	}
}
