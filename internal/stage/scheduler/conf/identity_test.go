package conf

import (
	"errors"
	"os"
	"strings"
	"testing"

	"zmailer/internal/run/config"
)

// M30: users that are not there are told before mail waits for them.
func TestUnknownUserIsNamedWithItsPlace(t *testing.T) {
	conf := mustConf(t, "*/*\n\tinterval=1m user=no-such-user\nsmtp/* group=no-such-group command=\"x\"\nlocal/* user=root command=y\n")
	want := []string{
		"scheduler.conf:2:14: ",
		"scheduler.conf:3:8: ",
	}
	errs := conf.CheckIdentities(os.Geteuid() == 0)
	if os.Geteuid() == 0 && len(errs) != len(want) || len(errs) < len(want) {
		t.Fatalf("got %q, want %q", errs, want)
	}
	for i := range want {
		if bad := (*config.Error)(nil); !strings.HasPrefix(errs[i].Error(), want[i]) || !errors.As(errs[i], &bad) {
			t.Errorf("got %q, want %q", errs[i], want[i])
		}
	}
}
