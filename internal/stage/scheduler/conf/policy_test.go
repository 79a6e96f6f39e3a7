package conf

import (
	"reflect"
	"testing"
	"time"

	"zmailer/internal/stage/scheduler/thread"
)

// M24 M26 M27 M28 M29 Z10: the core goes by what the clause says, each field of it.
func TestPolicyIsWhatTheClauseSays(t *testing.T) {
	conf := mustConf(t, `
*/* interval=2s retries="3 4" jitter=5 expiry=6h expiry2=7h maxchannel=8 maxring=9 maxunproven=3 maxthr=10 start=11 command=x
	ageorder rate=12/s hostrate=13/m queueonly wakeuprestartonly
`)
	want := thread.Policy{
		Interval: 2 * time.Second, Retries: []int{3, 4}, Jitter: 5, Expiry: 6 * time.Hour, Expiry2: 7 * time.Hour,
		MaxChannel: 8, MaxRing: 9, MaxUnproven: 3, MaxThread: 10, Start: 10, AgeOrder: true,
		Rate: thread.Rate{N: 12, Per: time.Second}, HostRate: thread.Rate{N: 13, Per: time.Minute}, QueueOnly: true, JoinWaiting: true,
	}
	got := conf.Match("smtp", "h").Policy()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	fields := reflect.ValueOf(want)
	for i := range fields.NumField() {
		if fields.Field(i).IsZero() {
			t.Errorf("%s is not looked at here", fields.Type().Field(i).Name)
		}
	}
}
