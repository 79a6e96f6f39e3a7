// Package scheduler is the stage from transport/ to delivery: it reads work
// specifications, hands their recipients to transport agents, decides when what
// failed is tried again or given up, reports to senders, and removes what is done.
//
// It owns the message from its work specification's rename into transport/ to the
// unlink of that specification. The parts: Conf is scheduler.conf; Spool is every
// change on the disk, synchronous; thread is which recipients are next, pure;
// engine joins them with agents, which are child processes.
//
// What survives a crash: everything that matters is in the work specifications:
// tags, diagnostics, the history's attempts and next times, and the names of
// reports that are prepared. A start reads them all; nothing else is remembered.
//
// Diagnostics: Run's error says why the scheduler cannot run: *config.Error for
// scheduler.conf, durable.ErrLocked when another one does. Trouble with one message
// or one agent is logged, and the rest goes on.
package scheduler
