package dsn

import "io"

// Write writes headers and body of the report with LF line ends.
func Write(w io.Writer, r *Report) error { panic("stub") }
