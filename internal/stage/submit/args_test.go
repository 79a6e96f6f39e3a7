package submit

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"zmailer/internal/run/assert"
)

func longWithValue(name string) bool { return name == "postoffice" || name == "from" }

func TestSendmailArgumentsAreTakenApart(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"nothing":                      {"", ""},
		"recipients alone":             {"a@b c", "-- a@b c"},
		"attached sender":              {"-fme@x you", "-f me@x -- you"},
		"sender behind":                {"-f me@x you", "-f me@x -- you"},
		"old name of the sender":       {"-rme@x you", "-f me@x -- you"},
		"null sender":                  {"-f <> you", "-f <> -- you"},
		"sender that looks like one":   {"-f -t you", "-f -t -- you"},
		"ignore dots":                  {"-oi you", "-i -- you"},
		"ignore dots, parted":          {"-o i you", "-i -- you"},
		"other settings go":            {"-om -odb -oem -o7 -oQ/var/q you", "-- you"},
		"as mutt calls":                {"-oem -oi -f me@x -- you", "-i -f me@x -- you"},
		"as cron calls":                {"-FCronDaemon -i -odi -oem -oi -t -f root", "-F CronDaemon -i -i -t -f root"},
		"as PHP calls":                 {"-t -i", "-t -i"},
		"cluster":                      {"-tiv", "-t -i -v"},
		"cluster that ends in a value": {"-tifme@x", "-t -i -f me@x"},
		"mode":                         {"-bm you", "-b m -- you"},
		"queue listing":                {"-bp", "-b p"},
		"queue run":                    {"-q15m", "--q=15m"},
		"queue run, bare":              {"-q", "--q="},
		"queue run of a message":       {"-qIS1A2", "--q=IS1A2"},
		"aliases":                      {"-I", "-b i"},
		"recipients between options":   {"you -f me@x them -t", "-f me@x -t -- you them"},
		"end of options in between":    {"-t you -- -x", "-t -- you -x"},
		"sender per recipient":         {"-XV -f o@l a", "--verp=+= -f o@l -- a"},
		"its characters":               {"-XV-= a", "--verp=-= -- a"},
		"our configuration":            {"-C /etc/z/zmailer.conf a", "--config /etc/z/zmailer.conf -- a"},
		"others' configuration":        {"-C /etc/mail/sendmail.cf -C/x a", "-- a"},
		"Exim's origin":                {"-oMr local -oMa 192.0.2.1 -oem a", "-- a"},
		"ssmtp's":                      {"-4 -6 -auuser -E a", "-- a"},
		"debugging":                    {"-d8.7 -X /tmp/log you", "-- you"},
		"hop count":                    {"-h 5 you", "-- you"},
		"hop count, attached":          {"-h5 you", "-- you"},
		"help":                         {"-h", "-h"},
		"old flags without effect":     {"-m -n -s -U -G you", "-- you"},
		"long options":                 {"-Oqueuedir=/x -O IgnoreDots you", "-- you"},
		"submission mode":              {"-Am -Ac -t", "-t"},
		"reports":                      {"-Nsuccess,delay -R hdrs -V id you", "-N success,delay -R hdrs -V id -- you"},
		"our long flags":               {"--postoffice /p --log-level=debug -t", "--postoffice /p --log-level=debug -t"},
		"long flag without value":      {"--help you", "--help -- you"},
		"end of options":               {"-t -- -x -f", "-t -- -x -f"},
		"lone dash is a recipient":     {"-", "-- -"},
		"unknown letter":               {"-tz", "-t -z"},
		"missing value":                {"-f", "-f"},
		"dash in a cluster":            {"-i-postoffice /p", "-i -? -- /p"},
		"missing value at the end":     {"you -f", "-f"},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(NormaliseArgs(strings.Fields(tt.in), longWithValue), " ")
			assert.Equal(t, got, tt.want)
		})
	}
}

func TestEmptyArgumentsAreKept(t *testing.T) {
	got := NormaliseArgs([]string{"-f", "", "-F", "", ""}, longWithValue)
	want := []string{"-f", "", "-F", "", "--", ""}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// FuzzNormaliseArgs: no argument behind the options is changed or lost, and what comes out
// means the same when it is read again.
func FuzzNormaliseArgs(f *testing.F) {
	for _, s := range []string{"-t", "-oi\x00-fme\x00you", "--postoffice\x00/p\x00-bm", "-h\x005", "-f\x00--\x00x", "-tz\x00é", "--\x00-t", "-\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		in := strings.Split(s, "\x00")
		before := slices.Clone(in)
		got := NormaliseArgs(in, longWithValue)
		if !slices.Equal(in, before) {
			t.Fatalf("%q was changed to %q", before, in)
		}
		again := NormaliseArgs(slices.Clone(got), longWithValue)
		assert.Same(t, got, again, "%q, and its result", in)
	})
}
