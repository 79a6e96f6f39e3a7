// Package faults shows what the real programs do when the system below them fails
// without killing them: full file systems, directories that become read-only, processes
// that are stopped for a while, and system calls that answer with an error (M2, K1, K9,
// K12, S7, S21).
//
// The promise is that of a kill: accepted mail is not lost, nothing arrives twice but
// what the log calls in doubt, nothing is left. Besides, a fault of ours is never
// answered as the sender's: what cannot be accepted now is refused for now.
package faults
