package scheduler

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"zmailer/internal/config"
	"zmailer/internal/scheduler/thread"
)

// Settings is what the matching clauses say about one channel and host.
type Settings struct {
	Interval    time.Duration
	Retries     []int
	Expiry      time.Duration // 0: never
	Expiry2     time.Duration // 0: never
	IdleMax     time.Duration
	ReportTimes []time.Duration // ages at which a delay is reported, ascending

	MaxTA      int // agent processes of the whole scheduler; 0: no limit
	MaxChannel int // deliveries at once; 0: no limit
	MaxRing    int // deliveries at once; 0: no limit
	MaxThr     int // deliveries at once; 0: no limit
	Overfeed   int // deliveries that a one-slot agent may have queued

	AgeOrder  bool
	ByChannel bool // one ring per channel even if the command does not name it

	// Read and checked, not acted upon yet.
	QueueOnly, WakeupRestartOnly bool
	User, Group                  string
	Nice                         int

	Command Command
	Clause  string // the pattern of the clause with the command, for people

	key string // of the bodies that matched
}

func defaultSettings() Settings {
	return Settings{
		Interval: time.Minute, Retries: []int{1, 1, 2, 3, 4, 8, 13, 21, 34}, Expiry: 72 * time.Hour,
		ReportTimes: []time.Duration{4 * time.Hour}, MaxTA: 100, MaxThr: 1,
	}
}

// Policy is the part that the thread core works by.
func (s *Settings) Policy() thread.Policy {
	return thread.Policy{
		Interval: s.Interval, Retries: s.Retries, Expiry: s.Expiry, Expiry2: s.Expiry2,
		MaxChannel: s.MaxChannel, MaxRing: s.MaxRing, MaxThread: s.MaxThr, AgeOrder: s.AgeOrder,
	}
}

// maxWait bounds interval times retry, so that times stay sane.
const maxWait = 366 * 24 * time.Hour

// setting reads one setting of a clause.
func (p *confParser) setting(key, value string, has bool) (setting, error) {
	if key == "command" {
		c, err := parseCommand(value, p.getenv)
		if err != nil {
			return nil, p.bad("command: %v", err)
		}
		return func(s *Settings) { s.Command = c }, nil
	}
	for _, read := range []func(key, value string, has bool) (setting, error){readFlag, readNumber, readTime, readWord} {
		set, err := read(key, value, has)
		if err != nil {
			return nil, p.bad("%s=%s: %v", key, value, err)
		}
		if set != nil {
			return set, nil
		}
	}
	return nil, p.bad("%s is no setting; there are %s", key, strings.Join(settingNames(), ", "))
}

// settingNames are the keys for an error message.
func settingNames() []string {
	names := []string{"command", "retries", "reporttimes", "user", "group"}
	for name := range flags() {
		names = append(names, name)
	}
	for name := range numbers() {
		names = append(names, name)
	}
	for name := range times() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func flags() map[string]func(*Settings, bool) {
	return map[string]func(*Settings, bool){
		"ageorder":          func(s *Settings, v bool) { s.AgeOrder = v },
		"bychannel":         func(s *Settings, v bool) { s.ByChannel = v },
		"queueonly":         func(s *Settings, v bool) { s.QueueOnly = v },
		"wakeuprestartonly": func(s *Settings, v bool) { s.WakeupRestartOnly = v },
	}
}

func readFlag(key, value string, has bool) (setting, error) {
	put := flags()[key]
	if put == nil {
		return nil, nil
	}
	v := true
	if has {
		switch strings.ToLower(value) {
		case "yes":
		case "no":
			v = false
		default:
			return nil, errors.New("it stands alone, or is yes or no")
		}
	}
	return func(s *Settings) { put(s, v) }, nil
}

// number is a setting that is a whole number.
type number struct {
	least, most int
	put         func(*Settings, int)
}

func numbers() map[string]number {
	const many = 1_000_000
	return map[string]number{
		"maxta":      {0, many, func(s *Settings, v int) { s.MaxTA = v }},
		"maxchannel": {0, many, func(s *Settings, v int) { s.MaxChannel = v }},
		"maxring":    {0, many, func(s *Settings, v int) { s.MaxRing = v }},
		"maxthr":     {0, many, func(s *Settings, v int) { s.MaxThr = v }},
		"overfeed":   {0, many, func(s *Settings, v int) { s.Overfeed = v }},
		"nice":       {-20, 19, func(s *Settings, v int) { s.Nice = v }},
		// ZMailer's; they mean nothing here.
		"skew":        {0, many, nil},
		"priority":    {-20, 19, nil},
		"syspriority": {-20, 19, nil},
		"sysnice":     {-20, 19, nil},
	}
}

func readNumber(key, value string, _ bool) (setting, error) {
	n, ok := numbers()[key]
	if !ok {
		return nil, nil
	}
	v, err := strconv.Atoi(value)
	if err != nil || v < n.least || v > n.most {
		return nil, errors.New("it must be a number from " + strconv.Itoa(n.least) + " to " + strconv.Itoa(n.most))
	}
	return func(s *Settings) {
		if n.put != nil {
			n.put(s, v)
		}
	}, nil
}

func times() map[string]func(*Settings, time.Duration) {
	return map[string]func(*Settings, time.Duration){
		"interval": func(s *Settings, v time.Duration) { s.Interval = v },
		"expiry":   func(s *Settings, v time.Duration) { s.Expiry = v },
		"expiry2":  func(s *Settings, v time.Duration) { s.Expiry2 = v },
		"idlemax":  func(s *Settings, v time.Duration) { s.IdleMax = v },
	}
}

func readTime(key, value string, _ bool) (setting, error) {
	put := times()[key]
	if put == nil {
		return nil, nil
	}
	v, err := config.ParseDuration(value)
	if err != nil {
		return nil, err
	}
	if key == "interval" && (v <= 0 || v > maxWait) {
		return nil, errors.New("it must be longer than nothing and at most a year")
	}
	return func(s *Settings) { put(s, v) }, nil
}

// readWord reads settings that are lists or words.
func readWord(key, value string, has bool) (setting, error) {
	switch key {
	case "retries":
		list, err := parseRetries(value)
		return func(s *Settings) { s.Retries = list }, err
	case "reporttimes":
		list, err := parseTimes(value)
		return func(s *Settings) { s.ReportTimes = list }, err
	case "user", "group", "expiryform", "deliveryform":
	default:
		return nil, nil
	}
	if !has || value == "" {
		return nil, errors.New("it has no value")
	}
	return func(s *Settings) {
		switch key {
		case "user":
			s.User = value
		case "group":
			s.Group = value
		}
	}, nil
}

func listFields(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ' ' || r == '\t' || r == ',' })
}

// maxRetries is how long the list of waits may be: the core's place in it is a byte.
const maxRetries = 200

func parseRetries(value string) ([]int, error) {
	var list []int
	for _, word := range listFields(value) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > 100_000 {
			return nil, errors.New("they must be numbers from 1 to 100000")
		}
		list = append(list, n)
	}
	if len(list) == 0 || len(list) > maxRetries {
		return nil, errors.New("there must be 1 to " + strconv.Itoa(maxRetries) + " of them")
	}
	return list, nil
}

func parseTimes(value string) ([]time.Duration, error) {
	var list []time.Duration
	for _, word := range listFields(value) {
		d, err := config.ParseDuration(word)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 && d <= list[len(list)-1] {
			return nil, errors.New("they must ascend")
		}
		list = append(list, d)
	}
	return list, nil
}
