package taproto

// AppendCommand appends c's line, newline included.
func AppendCommand(b []byte, c Command) []byte { panic("stub") }

// ParseCommand reads a line without its newline.
func ParseCommand(line []byte) (Command, error) { panic("stub") }

// AppendLine appends l's line, newline included.
func AppendLine(b []byte, l *Line) []byte { panic("stub") }

// ParseLine reads a line without its newline. What it cannot read is a comment.
func ParseLine(line []byte) Line { panic("stub") }
