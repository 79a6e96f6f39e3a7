package dotlock

import (
	"os/exec"
	"strconv"
	"testing"
	"time"

	"zmailer/internal/run/assert"
)

func TestLockIsStaleWhenNobodyCanHoldIt(t *testing.T) {
	ended := exec.Command("true")
	assert.Must(t, ended.Run())
	dead := strconv.Itoa(ended.Process.Pid)
	now := time.Now()
	for _, tt := range []struct {
		text string
		age  time.Duration
		want bool
	}{
		{string(Text("here")), time.Minute, false},
		{string(Text("here")), 2 * time.Hour, true},
		{dead + " here\n", 0, true},
		{dead + " elsewhere\n", time.Minute, false},
		{dead + " elsewhere\n", 6 * time.Minute, true},
		{"", time.Minute, false},
		{"", 6 * time.Minute, true},
		{"", -6 * time.Minute, true},
		{"0 here\n", time.Minute, false},
	} {
		assert.Equal(t, Stale([]byte(tt.text), now.Add(-tt.age), now, "here"), tt.want, "%q of %v", tt.text, tt.age)
	}
}
