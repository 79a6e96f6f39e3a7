package scheduler

import (
	"testing"

	"zmailer/internal/stage/scheduler/conf"
)

func noEnv(string) (string, bool) { return "", false }

func mustConf(t testing.TB, text string) *conf.File {
	t.Helper()
	c, err := conf.Parse("scheduler.conf", []byte(text), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
