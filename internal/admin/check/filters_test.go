package check

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/internal/run/config"
)

// Op10: a FILTER action whose channel no clause with a command serves is a warning with its line.
func TestOp10FilterThatNoAgentServesIsWarnedOf(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	assert.Must(t, os.WriteFile(dir+"/ta-smtp", []byte("#!/bin/sh\n"), 0o755))
	for file, text := range map[string]string{"zmailer.conf": "HOSTNAME=mx.example.org\nPOSTOFFICE=" + dir + "/po\n", "routes": ". smtp!\n",
		"scheduler.conf": "*/*\n\tinterval=1m\nsmtpx/*\n\tcommand=\"ta-smtp $channel\"\n",
		"header-rules":   "/^x-a/ FILTER smtp:[127.0.0.1]:10025\n/^x-b/ FILTER smpt:[127.0.0.1]:10025\nif /x/\n/y/ DUNNO\nendif\nall filter X-C amavis!127.0.0.1:10024\n",
		"body-rules":     "/x/ FILTER scan:dummy\n"} {
		assert.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644))
	}
	settings := assert.Get(config.Load(filepath.Join(dir, "zmailer.conf")))(t)
	bad, warnings := config.Sort(checkRouter(settings))
	assert.Equal(t, bad == nil, true, "%v", bad)
	var got []string
	for _, err := range config.Errors(warnings) {
		line := lineOf("router", err)
		if line.Remedy == "" || line.Cause == "" {
			t.Errorf("no remedy or cause: %+v", line)
		}
		got = append(got, fmt.Sprintf("%s:%d", filepath.Base(line.File), line.Line))
	}
	assert.Equal(t, strings.Join(got, " "), "header-rules:2 header-rules:6 body-rules:1")
}
