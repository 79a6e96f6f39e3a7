# A new machine: the package, and the first message.
useradd --create-home --shell /bin/sh alice
useradd --create-home --shell /bin/sh bob
dpkg -i "$1"
echo 'far.example   smtp![127.0.0.1]:2626' >>/etc/zmailer/routes
begin
printf 'Subject: hello\n\nThe first message.\n' | sendmail alice
await grep -q 'The first message.' /var/mail/alice
zmctl queue
cat /var/mail/alice

# Sending needs no right: no program is setuid.
[ "$(find /usr/libexec/zmailer -perm /6000)" = "" ] || fail "programs are setuid"
su bob -c "printf 'Subject: from bob\n\nNo rights.\n' | sendmail -oi alice"
await grep -q 'No rights.' /var/mail/alice
grep -q '^From bob@' /var/mail/alice || fail "bob is not the sender"
[ "$(stat -c %U:%a /var/mail/alice)" = alice:600 ] || fail "the mailbox: $(stat -c %U:%a /var/mail/alice)"
for status in /proc/[0-9]*/status; do
	name=$(sed -n 's/^Name:\t//p' $status)
	case $name in
	smtpserver | router | scheduler | ta-*)
		if [ "$(awk '/^Uid:/ {print $2}' $status)" = 0 ]; then
			case $(tr '\0' ' ' <${status%status}cmdline) in
			*--start-agents* | ta-mailbox*) ;;
			*) fail "$name runs as root" ;;
			esac
		fi
		echo "$name runs as $(awk '/^Uid:/ {print $2}' $status), may $(awk '/^CapEff:/ {print $2}' $status), starts $(tr '\0' ' ' <${status%status}cmdline)"
		;;
	esac
done

# sendmail's other names.
mailq | grep -q '0 messages' || fail "mailq: $(mailq)"
newaliases | grep -q 'can be used' || fail "newaliases: $(newaliases)"
sendmail -bp | grep -q '0 messages' || fail "sendmail -bp: $(sendmail -bp)"

# One that waits.
su alice -c "printf 'Subject: stuck\n\nIt waits.\n' | sendmail ann@far.example"
await sh -c "zmctl queue | grep -q 'connection refused'"
zmctl why "$(zmctl queue --json | sed -n 's/.*"id":"\([^"]*\)".*/\1/p')"
end
zmctl check | grep -q ' 0 errors' || fail "$(zmctl check)"
