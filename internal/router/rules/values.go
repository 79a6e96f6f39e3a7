package rules

import (
	"zmailer/internal/address"
	"zmailer/internal/table/text"
)

// value is one of the values of an alias.
type value struct {
	kind    text.ValueKind
	mailbox address.Mailbox
	final   bool // "\\name": the user's mailbox, whatever the aliases say
	text    string
}

// parseValues reads a comma list. where is the offset of what is wrong.
func parseValues(list string) (values []value, where int, err error) {
	read, where, err := text.ParseValues(list)
	return valuesOf(read), where, err
}

// valuesOf are values as the text form of a table gives them.
func valuesOf(read []text.Value) []value {
	var list []value
	for _, v := range read {
		list = append(list, value{v.Kind, v.Mailbox, v.Final, v.Text})
	}
	return list
}
