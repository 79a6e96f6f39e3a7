package check

import (
	"bytes"
	"strings"

	"zmailer/internal/run/config"
	"zmailer/internal/run/human"
	"zmailer/internal/stage/router"
	"zmailer/internal/stage/router/route"
	"zmailer/internal/stage/scheduler"
	"zmailer/internal/stage/tasmtp"
	"zmailer/internal/stage/tasmtp/tlspolicy"
)

// Configuration is what the programs report about a configuration.
type Configuration struct {
	Usable bool         `json:"usable"`
	Lines  []ConfigLine `json:"lines"`
	Code   int          `json:"-"` // the exit code of the program with the worst one
}

// ConfigLine is a line about what one program reads.
type ConfigLine struct {
	Program string `json:"program"`
	Text    string `json:"text"`
	Wrong   bool   `json:"-"` // the program cannot use its configuration
}

// Config checks what scheduler, router and ta-smtp read, by the functions that they start
// with: every daemon starts with a configuration that is usable.
func Config(settings *config.Config) *Configuration {
	c := &Configuration{Usable: true, Lines: []ConfigLine{}}
	var said bytes.Buffer
	ok := scheduler.CheckConfig(settings, func(policy string) error {
		_, err := tlspolicy.ParsePolicy(policy, "")
		return err
	}, &said)
	if !ok {
		c.fail(config.ExitConfig)
	}
	for line := range strings.Lines(said.String()) {
		c.add("scheduler", !ok, strings.TrimRight(line, "\n"))
	}
	cfg, err := router.ConfigFrom(settings)
	if err == nil {
		err = route.CheckTables(cfg.Config)
	}
	c.result("router", err, "the router's tables can be used")
	for _, r := range settings.Retired() {
		c.add("ta-smtp", false, r.Error())
	}
	c.result("ta-smtp", tasmtp.CheckConfig(settings), "the tables of ta-smtp can be used")
	return c
}

func (c *Configuration) result(program string, err error, fine string) {
	if err == nil {
		c.add(program, false, fine)
		return
	}
	code := config.Exit(err)
	if program == "ta-smtp" {
		code = config.ExitConfig // every error of it is one of its tables
	}
	c.fail(code)
	for line := range strings.Lines(err.Error()) {
		c.add(program, true, strings.TrimRight(line, "\n"))
	}
}

func (c *Configuration) fail(code int) { c.Usable, c.Code = false, max(c.Code, code) }

func (c *Configuration) add(program string, wrong bool, text string) {
	c.Lines = append(c.Lines, ConfigLine{Program: program, Text: human.Clean(text), Wrong: wrong})
}
