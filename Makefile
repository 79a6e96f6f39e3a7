# Targets for people; .ci/run is the sum of them. Needs go, make, git and sh.

GO ?= go
BIN := bin
FUZZTIME ?= 5s
MINUTES ?= 1
SOAKFLAGS ?=
# Losses of power that make soak tries on each of ext4 and xfs; 0: none.
SOAKIMAGES ?= 500
# Rounds of nexthop that make soak plays.
SOAKHOPS ?= 100000
# How long make check, and make soak, compare random sessions with the model.
SESSIONS ?= 30s
SOAKSESSIONS ?= 10m
# Random MIME messages that make soak converts; make test converts 3000.
SOAKMIME ?= 50000
# Recipients whose ends make soak judges.
SOAKFATES ?= 100000
# Recipients of the message that waits for 1,000 attempts in make soak; make test has 1000.
SOAKHISTORY ?= 10000
# Recipients that each of 400 connections names in make soak, as root; 0: not at all. make attack
# has 2000.
SOAKRCPTS ?= 10000
# The same of make disk, and the file systems: also ext4-journal and ext4-writeback.
IMAGES ?= 20
DISKFS ?= ext4,xfs
DISKFLAGS ?=
# Losses of power tried at each cut, beside those that always are.
LOSSES ?= 8
# Packages tested at once: most tests wait more than they work.
ATONCE ?= -p 6
CRASHFLAGS ?=
BENCHFLAGS ?= -messages 5000 -connections 20 -postfix
PEERFLAGS ?=
COSTFLAGS ?= -allocs

# Installation: docs/install.md.
PREFIX ?= /usr/local
SYSCONFDIR ?= /etc
SPOOLDIR ?= /var/spool/postoffice
DESTDIR ?=
VERSION ?= 0.1.0
ARCH ?= $(shell $(GO) env GOARCH)
# yes: sendmail, mailq and newaliases are put below PREFIX, too.
LINKS ?= yes
COMPRESS ?= no
MAINTAINER ?= Postmaster <postmaster@localhost>
# 1: users are looked up by the C library as well (LDAP, sssd); what is built then runs with
# its version or later ones alone, and takes 2 MB more for each process.
CGO ?= 0
export CGO_ENABLED := $(CGO)
# Installed programs know where the machine's configuration is.
LDFLAGS = -s -w -X zmailer/internal/run/config.installed=$(SYSCONFDIR)/zmailer/zmailer.conf -X zmailer/internal/run/config.Version=$(VERSION)
PACKAGE ?= $(CURDIR)/var/package

.PHONY: all build install man deb rpm package-root test wrongconf smtp filters ecosystem demo check fmt vet staticcheck archtest race cuts nexthop sessions disk e2e sendmail crash attack machines soak chaos bench bench-peers costs fuzz clean

all: build

# Every program, into bin/.
build:
	@mkdir -p $(BIN)
	$(GO) build -o $(BIN)/ ./cmd/...

# The manual pages, into bin/man.
man: build
	$(GO) run ./scripts/man -bin $(BIN) $(BIN)/man

# Programs, units, manual and configuration below $(DESTDIR); what is there of the
# configuration stays. What is to be done then stands in docs/install.md.
install:
	rm -rf var/install && mkdir -p var/install
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o var/install/ ./cmd/...
	$(GO) run ./scripts/man -bin var/install var/man
	BIN=var/install MAN=var/man DESTDIR='$(DESTDIR)' PREFIX='$(PREFIX)' SYSCONFDIR='$(SYSCONFDIR)' \
		SPOOLDIR='$(SPOOLDIR)' LINKS='$(LINKS)' COMPRESS='$(COMPRESS)' ./packaging/install.sh

# What the packages hold.
package-root:
	rm -rf $(PACKAGE)/root
	$(MAKE) install DESTDIR=$(PACKAGE)/root PREFIX=/usr SYSCONFDIR=/etc SPOOLDIR=/var/spool/postoffice LINKS=no COMPRESS=yes

# Packages for Debian and for systems with RPM, into var/package.
deb rpm: package-root
	ROOT='$(PACKAGE)/root' VERSION='$(VERSION)' ARCH='$(ARCH)' MAINTAINER='$(MAINTAINER)' \
		$(GO) -C packaging tool nfpm package --config nfpm.yaml --packager $@ --target $(PACKAGE)/

# All tests but those that have a target of their own (machines, attack, disk); those that
# need a right or a program that is not there say so. A dozen packages run the programs: they
# are linked once. What takes longest, for its waits, begins first. make check runs go vet.
LONGEST = ./test/crash ./test/e2e ./internal/stage/smtpserver ./test/docs ./internal/stage/scheduler/store ./test/faults ./cmd/zmctl \
	./test/install ./test/filters ./internal/stage/tasmtp ./internal/stage/router ./test/kill ./internal/stage/scheduler/engine ./internal/admin/repair \
	./test/lookups ./internal/stage/smtpserver/auth ./internal/ui/web ./test/sendmail ./test/ecosystem ./test/disk ./scripts/man

test: build
	PROGRAMS=$(CURDIR)/$(BIN) $(GO) run ./scripts/testsummary -vet=off $(ATONCE) $(LONGEST) ./...

# The whole system on this machine, with five messages' lives as they happen.
demo: build
	$(GO) run ./scripts/demo -bin $(BIN) -dir var/demo

# What a change must pass besides make test. make test has the cuts, too, with two losses.
CUTS ?= cuts
check: fmt vet staticcheck archtest race nexthop sessions $(CUTS)

fmt:
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "gofmt -w wanted:"; echo "$$unformatted"; exit 1; fi

vet:
	$(GO) vet ./...

staticcheck:
	$(GO) tool staticcheck ./...

# Who imports whom, lengths, package comments: internal/archtest.
archtest:
	$(GO) test -count=1 ./internal/archtest

# In another order each time; the seed stands in the output of a failure. What links
# SQLite is left out: it would be compiled with the detector for minutes, and its tests
# want the real programs, which make test builds; internal/archtest is a target of its
# own. Where nothing runs beside anything else
# (internal/archtest looks) there is nothing to race, and the detector makes it ten times
# as slow.
ALONE = ./internal/mail/address ./internal/mail/dsn ./internal/stage/scheduler/sim ./internal/stage/scheduler/thread ./internal/mail/downgrade ./internal/cluster/protocol
RACED = $$($(GO) list ./internal/... ./cmd/... | grep -v -e /internal/lookup$$ -e /internal/lookup/ldap -e /internal/lookup/pam -e /internal/lookup/settings -e /internal/lookup/sqlite -e /cmd/lookup -e /internal/archtest $(ALONE:./%=-e /%$$))

race:
	@if command -v "$$($(GO) env CC)" >/dev/null; then \
		export CGO_ENABLED=1; \
		GORACE=atexit_sleep_ms=50 $(GO) run ./scripts/testsummary $(ATONCE) -vet=off -race -short -shuffle=on ./cmd/zmctl ./internal/stage/scheduler/engine ./internal/stage/smtpserver ./internal/stage/router $(RACED); \
	else \
		echo "skipped: the race detector needs a C compiler; shuffled alone"; \
		$(GO) run ./scripts/testsummary $(ATONCE) -vet=off -short -shuffle=on $(RACED); \
	fi
	$(GO) run ./scripts/testsummary $(ATONCE) -vet=off -short -shuffle=on $(ALONE)

# Every stage stopped after each of its operations.
cuts:
	$(GO) run ./scripts/testsummary -count=1 ./test/crash/... -losses $(LOSSES)

# Next hops that answer at random: HOPROUNDS conversations, HOP_SEED=N repeats one run.
HOPROUNDS ?= 2000
nexthop:
	HOP_ROUNDS=$(HOPROUNDS) $(GO) test -count=1 -timeout 120m -run TestDel1RandomNextHop ./internal/stage/tasmtp

# Random SMTP sessions beside a model of the protocol, and random domain classes and aliases beside
# a model of where mail goes. A failure has the seed that repeats it:
# go test ./internal/stage/smtpserver -run TestSessionsFollowAModel -args -sessions-seed N
sessions:
	$(GO) run ./scripts/testsummary -count=1 -timeout 60m -run TestSessionsFollowAModel ./internal/stage/smtpserver -args -sessions $(SESSIONS)
	$(GO) run ./scripts/testsummary -count=1 -timeout 60m -run TestRecipientsFollowAModel ./internal/stage/router/rules -args -model $(SESSIONS)

# The real programs; with strace and postfix installed nothing is skipped.
e2e:
	$(GO) run ./scripts/testsummary -count=1 ./test/e2e/...

# Every wrong configuration of test/wrongconf through the real daemons; make test samples them.
wrongconf: build
	WRONGCONF=all PROGRAMS=$(CURDIR)/$(BIN) $(GO) run ./scripts/testsummary -count=1 -run TestOp1WrongConfigurationsStrandNoRealSystem ./test/e2e

# Programs that call sendmail, with ours and with Postfix's: docs/submit.md. As root, with
# the programs that .ci/run installs, nothing is skipped.
sendmail: build
	PROGRAMS=$(CURDIR)/$(BIN) $(GO) run ./scripts/testsummary -count=1 ./internal/stage/submit ./test/sendmail

# The dialogues of test/smtp against our server and Debian's Postfix.
smtp: build
	PROGRAMS=$(CURDIR)/$(BIN) $(GO) run ./scripts/testsummary -count=1 ./test/smtp -args -postfix

# Mail filters with our server and with Debian's Postfix: test/filters/testdata/outcomes.txt has
# what becomes of each case on both sides. As root, with the filters that .ci/run installs.
filters: build
	PROGRAMS=$(CURDIR)/$(BIN) $(GO) run ./scripts/testsummary -count=1 ./test/filters

# Dovecot, mlmmj, Mailman, amavis and certbot with our server, by the configuration that the pages in docs/
# show. As root, with the programs that .ci/run installs.
ecosystem: build
	PROGRAMS=$(CURDIR)/$(BIN) $(GO) run ./scripts/testsummary -count=1 ./test/ecosystem -args -slow

# The real programs killed at each state-changing system call, then each of those calls
# answered with errors; as root, with strace. CRASHFLAGS=-quick takes each step once.
crash:
	$(GO) run ./scripts/crash $(CRASHFLAGS)
	$(GO) run ./scripts/crash -errors $(CRASHFLAGS)

# Running systems attacked as a local user; as root, with strace. ATTACKFLAGS=-run=Sec1
# attacks in one way.
ATTACKFLAGS ?=
attack: build
	ATTACK=1 PROGRAMS=$(CURDIR)/$(BIN) $(GO) run ./scripts/testsummary -count=1 -timeout 10m ./test/attack $(ATTACKFLAGS)

# Whole Debian systems, with and without systemd, from the package to its removal; as root,
# with debootstrap and systemd-nspawn.
machines: build
	MACHINES=1 PROGRAMS=$(CURDIR)/$(BIN) $(GO) run ./scripts/testsummary -count=1 -timeout 15m ./test/install

# ext4 and xfs on a disk that logs, fails and loses power; as root, with /dev/fuse,
# e2fsprogs and xfsprogs.
disk: build
	PROGRAMS=$(CURDIR)/$(BIN) $(GO) run ./scripts/testsummary -count=1 -timeout 60m ./test/disk/... -images $(IMAGES) -fs $(DISKFS) $(DISKFLAGS)

# Random messages are converted. Then random load, kills and edits by hand for a while;
# tells the seed that repeats it. Then many losses of power on real file systems.
soak: build
	$(GO) test -count=1 ./internal/mail/downgrade -run Del5NoByteIsReplaced -v -args -messages=$(SOAKMIME) -seed=$$(date +%s)
	$(GO) run ./scripts/soak -bin $(BIN) -minutes $(MINUTES) $(SOAKFLAGS)
	$(MAKE) nexthop HOPROUNDS=$(SOAKHOPS)
	$(MAKE) sessions SESSIONS=$(SOAKSESSIONS)
	$(GO) test ./internal/stage/scheduler/engine -count=1 -run TestDur1EveryRecipientHasOneEnd -fates $(SOAKFATES)
	$(GO) test ./internal/stage/scheduler/store -count=1 -run TestDel2HistoryIsBounded -history-recipients $(SOAKHISTORY)
	@if [ $(SOAKRCPTS) != 0 ]; then $(MAKE) attack ATTACKFLAGS="-run=Atk1Recipients -args -recipients=$(SOAKRCPTS)"; fi
	@if [ $(SOAKIMAGES) != 0 ]; then $(MAKE) disk IMAGES=$(SOAKIMAGES); fi

# The same without hands in the spool: load, kills, signals, reloads, operations, few file
# descriptors; nothing lost, doubles in doubt only, descriptors, memory and files flat.
chaos: build
	$(GO) run ./scripts/soak -bin $(BIN) -minutes $(MINUTES) -without editor,depth -drain 10m $(CHAOSFLAGS)

# Benchmarks of the parts, then the whole pipeline, beside Postfix if it is there.
bench: build
	$(GO) test -run '^$$' -bench . -benchmem ./internal/...
	$(GO) run ./scripts/bench -bin $(BIN) $(BENCHFLAGS)

# All scenarios, in turn with Postfix, Exim and OpenSMTPD where they are: docs/performance.md.
bench-peers: build
	$(GO) run ./scripts/bench -bin $(BIN) -peers $(PEERFLAGS)

# System calls, switches, processor time and allocations of a message, by program; as
# root. COSTFLAGS="-before DIR" compares with other binaries.
costs: build
	$(GO) run ./scripts/costs -bin $(BIN) $(COSTFLAGS)

# Every fuzz target for $(FUZZTIME).
fuzz:
	@GO=$(GO) ./scripts/fuzz $(FUZZTIME)

clean:
	rm -rf $(BIN) var
