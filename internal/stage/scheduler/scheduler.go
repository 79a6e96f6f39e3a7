// Package scheduler is the stage from transport/ to delivery: it reads work specifications,
// hands their recipients to transport agents, decides when what failed is tried again or
// given up, reports to senders, and removes what is done. It owns the message from its work
// specification's rename into transport/ to the unlink of that specification.
//
// This package makes the configuration of a scheduler and of its agent launcher from
// zmailer.conf and scheduler.conf. The work is in the packages below it:
//
//	engine  the running scheduler: events from the disk, agents and clock become changes
//	thread  which recipients are next, a pure state machine
//	conf    scheduler.conf
//	store   every change in the postoffice
//	report  delivery status reports
//	agents  transport agents: who gets which job, their processes and protocol
//	query   the query sockets: listings, ETRN, metrics
//	events  what happens to messages, for the log and for those who follow
//	sim     the core on a virtual clock
//
// What survives a crash: see engine. Nothing is written here.
//
// Diagnostics: errors are *config.Error.
package scheduler
