set -eu
log=/var/log/zmailer-test.log
spool=/var/spool/postoffice

fail() {
	echo "FAILED: $*"
	tail -n 30 $log 2>/dev/null || true
	exit 1
}

await() { # a command that comes true
	tries=0
	until "$@" >/dev/null 2>&1; do
		tries=$((tries + 1))
		[ $tries -lt 300 ] || fail "it never came: $*"
		sleep 0.1
	done
}

begin() { # the daemons
	zmctl run >>$log 2>&1 &
	daemons=$!
	await grep -q 'msg=listening' $log
}

end() {
	kill $daemons
	wait $daemons || fail "zmctl run ended with $?"
	: >$log
}

# Everything in the postoffice: names, owners, modes, contents; not whose number an agent
# had that is dead, which zmctl init gives to the daemons' user.
picture() {
	find $spool -path $spool/owners -prune -o -printf '%p %u:%g %m %y\n' | sort
	find $spool -path $spool/owners -prune -o -type f -exec sha256sum {} + | sort -k2
}

same() { # what must not have changed it
	picture >/tmp/after
	diff /tmp/before /tmp/after || fail "$1 has touched the postoffice"
}
