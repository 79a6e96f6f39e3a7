# On a machine with systemd.
services="zmailer-smtpserver.service zmailer-router.service zmailer-scheduler.service zmailer-agents.service"

fail() {
	echo "FAILED: $*"
	systemctl list-units --all --no-legend 'zmailer*' || true
	zmctl queue || true
	journalctl --no-pager --output=cat --lines=40 -u 'zmailer*' || true
	exit 1
}

pid_of() { systemctl show --property=MainPID --value "zmailer-$1.service"; }

property() { systemctl show --property="$2" --value "$1"; }

# All of it runs, and nothing of the machine has failed.
healthy() {
	for unit in zmailer.target zmailer-agents.socket $services; do
		[ "$(systemctl is-active $unit)" = active ] || fail "$unit is $(systemctl is-active $unit)"
	done
	[ "$(systemctl is-system-running)" = running ] || fail "the machine is $(systemctl is-system-running): $(systemctl --failed)"
}

# A message to a user or address, with that subject.
send() { printf 'Subject: %s\n\nHello.\n' "$1" | sendmail "$2"; }

count() { grep -c "^Subject: $1\$" "$2" 2>/dev/null || true; }

# Once, and not twice.
once() {
	await grep -q "^Subject: $1\$" "$2"
	[ "$(count "$1" "$2")" = 1 ] || fail "$1 came $(count "$1" "$2") times"
}

connects() { (exec 3<>/dev/tcp/127.0.0.1/25 && read -r line <&3 && [ "${line%% *}" = 220 ]) 2>/dev/null; }

empty() { zmctl queue | grep -q '^0 messages'; }

set -E
trap 'fail "with $?: $BASH_COMMAND"' ERR
