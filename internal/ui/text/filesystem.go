package text

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"zmailer/internal/disk/filesystem"
)

// PrintProperties prints what was tried of a file system as a table.
func PrintProperties(w io.Writer, list []filesystem.Property) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PROPERTY\tTRIED\tRESULT\tMEANING")
	for _, p := range list {
		result, meaning := p.Result, p.Meaning
		switch {
		case p.IsMissing():
			result, meaning = "MISSING: "+result, meaning+"; "+p.Remedy
		case !p.Has:
			result = "no: " + result
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", p.Name, p.Tried, result, meaning)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, b.String())
	return err
}
