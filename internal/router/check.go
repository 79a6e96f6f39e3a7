package router

import "zmailer/internal/router/rules"

// CheckTables reads all tables and tells what is wrong with them, as *config.Error.
func CheckTables(c Config) error {
	c.Rules.Hostname = c.Hostname
	_, err := rules.New(c.Rules)
	return err
}
