#!/bin/sh
# Records spool.tar.gz: a postoffice and its configuration as the programs of commit 7688860
# leave them. Run it as root with the directory of those programs:
#
#	git worktree add /tmp/old 7688860 && (cd /tmp/old && go build -o bin/ ./cmd/...)
#	sh test/e2e/testdata/spool-7688860/record.sh /tmp/old/bin
#
# Only TestSpoolOfEarlierVersionIsDelivered reads the archive, which explains what must become
# of each message. Its subject is its place.
set -eu
bin=$1
here=$(cd "$(dirname "$0")" && pwd)
dir=/tmp/spool-7688860
test ! -e $dir
mkdir -p $dir/conf $dir/mail $dir/postoffice
export POSTOFFICE=$dir/postoffice ZCONFIG=$dir/conf/zmailer.conf
# Durations are long: the recorded mail gets old.
cat >$dir/conf/zmailer.conf <<EOF
POSTOFFICE=$dir/postoffice
HOSTNAME=mta.example
SMTPLISTEN=127.0.0.1:7687
LOG=json
LOCALUSERS=$dir/conf/users
MAILBOX=$dir/mail/%u/
REMOVEDKEEP=0
POSTMANKEEP=0
POSTMANCOPY=yes
EOF
printf 'alice\nbob\n' >$dir/conf/users
echo mta.example >$dir/conf/localnames
echo '. smtp![127.76.88.60]:7688' >$dir/conf/routes
printf 'team: :include:%s\nlost: :include:%s\n' $dir/conf/team $dir/conf/lost >$dir/conf/aliases
cat >$dir/conf/scheduler.conf <<EOF
*/*
	interval=1s retries="1" expiry=36500d maxta=4 maxring=4 maxthr=4
smtp/*
	command="ta-smtp --slots=4 \$channel"
local/*
	command="ta-mailbox --slots=4 \$channel"
EOF
$bin/zmctl init --config-dir $dir/conf >/dev/null
send() { # subject, recipients
	subject=$1
	shift
	printf 'Subject: %s\n\n%s\n' "$subject" "$subject" | $bin/submit -i -f bob@mta.example "$@"
}
await() { # command that must succeed
	n=0
	until eval "$1"; do
		n=$((n + 1))
		test $n -lt 600 || { echo "no: $1" >&2; exit 1; }
		sleep 0.1
	done
}
count() { ls $POSTOFFICE/$1 2>/dev/null | grep -c "$2"; }

# The host [127.76.88.60]:7688 does not answer: these are deferred, with a history.
send queue far@sink.example alice@mta.example
send held held@sink.example
send removed removed@sink.example
send deferred team@mta.example
send lost lost@mta.example
# 51 Received lines: a copy for the postmaster, and a report.
{ n=0; while [ $n -lt 51 ]; do echo "Received: from a by b; Sun, 22 Nov 2026 10:00:00 +0000"; n=$((n + 1)); done
	printf 'Subject: postman\n\npostman\n'; } | $bin/submit -i -f bob@mta.example alice@mta.example
$bin/zmctl run >$dir/log 2>&1 &
daemons=$!
await 'ls $dir/mail/alice/new/* >/dev/null 2>&1 && ls $dir/mail/bob/new/* >/dev/null 2>&1'
await 'test $(count deferred ^[0-9]) = 2 && test $(count postman _) = 1'
await 'test $(count transport ^[0-9]) = 3 && test $(grep -l "deferred" $POSTOFFICE/transport/[0-9]* | wc -l) = 3'
$bin/zmctl hold --to held@sink.example --yes
$bin/zmctl remove --to removed@sink.example --yes
kill $daemons
wait $daemons || true
# No daemon runs: this mail stays in router/, one message claimed by a router that died, one
# set aside by an operator, one in public/ because its submitter died before the rename.
send frozen frozen@sink.example
$bin/zmctl freeze --yes --state accepted
send router router@sink.example alice@mta.example
send claimed claimed@sink.example
i=$(ls -t $POSTOFFICE/router | head -1)
mv $POSTOFFICE/router/$i $POSTOFFICE/router/$i-999998
echo 'router pid 4711' >$POSTOFFICE/owners/999998
chmod 600 $POSTOFFICE/owners/999998
mkdir -p $POSTOFFICE/.nursery/4711.dn0kpsb1upkv
: >$POSTOFFICE/.nursery/4711.dn0kpsb1upkv/5999
chmod 700 $POSTOFFICE/.nursery $POSTOFFICE/.nursery/*
rm -f $POSTOFFICE/.web.* 
tar -C $dir --format=pax --sort=name --owner=0 --group=0 --numeric-owner --exclude='.mailq*' --exclude='.run*' -c conf postoffice | gzip -9n >"$here/spool.tar.gz"
find $POSTOFFICE ! -type d | sort
