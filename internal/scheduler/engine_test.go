package scheduler

import (
	"fmt"
	"testing"
)

func scriptConf(vars, keys string) string {
	return "*/* interval=1m retries=\"1 2\" expiry=3d maxthr=20 " + keys + "\nsmtp/*\nlocal/*\n\t" + agentCommand(vars) + "\n"
}

func TestEveryRecipientIsDeliveredOnce(t *testing.T) {
	for _, slots := range []int{1, 20} {
		t.Run(fmt.Sprintf("slots=%d", slots), func(t *testing.T) {
			r := newRig(t, scriptConf(fmt.Sprintf("TEST_SLOTS=%d", slots), ""), 0, quick)
			var want []string
			add := func(n int) {
				for range n {
					i := len(want)
					list := []rcpt{
						{line: fmt.Sprintf("smtp host%d ok.%d@h", i%5, i)},
						{line: fmt.Sprintf("smtp HOST%d ok.x%d@h", i%5, i)},
						{line: fmt.Sprintf("local joe ok.y%d@h", i)},
					}
					want = append(want, fmt.Sprintf("ok.%d@h", i), fmt.Sprintf("ok.x%d@h", i), fmt.Sprintf("ok.y%d@h", i))
					r.queue("a@b", list...)
				}
			}
			add(20) // before the start, and while it runs
			r.start()
			add(20)
			r.wait(40, "msg=finished")
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			r.deliveredOnce(want...)
			r.wait(120, "msg=delivered", "status=2.0.0", `reply="250 2.0.0 queued"`, "took=")
		})
	}
}
