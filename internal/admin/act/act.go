// Package act changes queued mail for operators.
//
// Diagnostics: none yet.
package act
