package kill

import (
	"testing"

	"zmailer/internal/run/assert"
	"zmailer/test/inject"
)

func TestStraceLineBecomesAStep(t *testing.T) {
	c := inject.Classes{PostOffice: "/po", Stores: []string{"/mail"}}
	tests := map[string]struct{ line, want string }{
		"a rename": {
			`12<router> renameat2(6</po>, "router/12", 6</po>, "router/12-7", RENAME_NOREPLACE) = 0`,
			"router renameat2 router/I -> router/I-P",
		},
		"a rename between directories": {
			`12<ta-mailbox> renameat2(6</mail/bob>, "tmp/1.S2R3.host,S=12", 6</mail/bob>, "new/1.S2R3.host,S=12", RENAME_NOREPLACE <unfinished ...>`,
			"ta-mailbox renameat2 mail/tmp/T -> mail/new/T",
		},
		"an absolute path": {
			`12<submit> openat(AT_FDCWD</home>, "/po/public/submit.1.x", O_WRONLY|O_CREAT|O_EXCL, 0600) = 3</po/public/submit.1.x>`,
			"submit openat public/T",
		},
		"a file that is only opened": {`12<router> openat(6</po>, "router/12-7", O_RDONLY|O_CLOEXEC) = 7</po/router/12-7>`, ""},
		"a write with an escaped quote and a parenthesis": {
			`12<scheduler> write(7</po/transport/A/12-7>, "h \"1) ,\0\n", 9) = 9`, "scheduler write transport/I-P",
		},
		"a final dot": {`12<ta-smtp> write(9<socket:[4]>, "To: a\r\n\r\n\33x\r\n.\r\n", 19) = 19`, "ta-smtp write socket final dot"},
		"a vector":    {`12<smtpserver> writev(9<socket:[4]>, [{iov_base="250 Ok\r\n", iov_len=8}], 1) = 8`, "smtpserver writev socket 250"},
		"a sync that goes on later": {
			`12<scheduler> fsync(7</po/transport/A/12-7> <unfinished ...>`, "scheduler fsync transport/I-P",
		},
		"strace lets it go":      {`12<submit> ???( <detached ...>`, ""},
		"its end":                {`12<scheduler> <... fsync resumed>)        = 0`, ""},
		"a file without a name":  {`12<router> ftruncate(7</po/owners/12>(deleted), 0) = 0`, "router ftruncate owners/P"},
		"the log":                {`12<router> write(2<pipe:[5]>, "{}", 2) = 2`, ""},
		"a wake-up":              {`12<router> write(4<anon_inode:[eventfd]>, "\1\0\0\0\0\0\0\0", 8) = 8`, ""},
		"a lock of no owner":     {`12<router> flock(4</po/transport/12-7>, LOCK_EX) = 0`, ""},
		"a lock of an owner":     {`12<router> flock(4</po/owners/7>, LOCK_EX|LOCK_NB) = 0`, "router flock owners/P"},
		"a copy between files":   {`12<x> copy_file_range(4</po/router/1>, NULL, 5</po/public/x>, NULL, 9, 0) = 9`, "x copy_file_range public/T"},
		"a directory is made":    {`12<router> mkdirat(6</po>, "queue/A", 0755) = -1 EEXIST (File exists)`, "router mkdirat queue/"},
		"a signal":               {`12<router> --- SIGURG {si_signo=SIGURG} ---`, ""},
		"an end of a process":    {`12<router> +++ exited with 0 +++`, ""},
		"a line that is cut off": {`12<rou`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			if p, ok := parseCall(tt.line+"\n", c); ok {
				got = p.String()
			}
			assert.Equal(t, got, tt.want)
		})
	}
}

// M1 M7 M18 M35 K7 S7: a table with a loss, a repetition, an orphan or too little
// coverage fails.
func TestTableFailsForWhatIsWrong(t *testing.T) {
	step := inject.Pair{Program: "router", Name: "fsync", Path: "router/I"}
	tests := map[string]struct {
		trial Trial
		want  bool
	}{
		"nothing happened":        {Trial{Hit: true}, false},
		"a copy that is in doubt": {Trial{Hit: true, Again: 1, Doubts: 1}, false},
		"a loss":                  {Trial{Hit: true, Lost: []string{"x"}}, true},
		"a repetition":            {Trial{Hit: true, Duplicated: []string{"x"}}, true},
		"a refused one is here":   {Trial{Hit: true, Wrong: []string{"x"}}, true},
		"an orphan":               {Trial{Hit: true, Orphans: []string{"x"}}, true},
		"no end":                  {Trial{Hit: true, Err: errTooLong}, true},
		"the step was not met":    {Trial{}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			table := newTable(map[inject.Pair]int{step: 3})
			tt.trial.Target.Pair = step
			table.add(&tt.trial)
			assert.Equal(t, table.Failed(), tt.want)
		})
	}
}
