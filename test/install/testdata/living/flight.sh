# Stopped while mail is on its way: what was begun is finished.
far=/var/tmp/far
touch $far/hold /home/bob/hold
printf '"|touch /home/bob/begun; while [ -e /home/bob/hold ]; do sleep 0.05; done; cat >>/home/bob/slow"\n' >/home/bob/.forward
chown bob: /home/bob/.forward
send 'on its way' ann@far.example
send 'to a slow program' bob
await test -e $far/holding
await test -e /home/bob/begun
exec 3<>/dev/tcp/127.0.0.1/25
printf 'EHLO client\r\nMAIL FROM:<bob@mail.example.org>\r\nRCPT TO:<alice@mail.example.org>\r\nDATA\r\n' >&3
until read -r line <&3 && [ "${line%% *}" = 354 ]; do [ "$line" ] || fail "no answer to DATA"; done
printf 'Subject: half of it\r\n\r\nHel' >&3

zmctl stop >/tmp/stopped 2>&1 &
stopping=$!
await sh -c "[ \"\$(systemctl is-active zmailer-scheduler.service)\" = deactivating ] || [ \"\$(systemctl is-active zmailer-smtpserver.service)\" = deactivating ]"
printf 'lo.\r\n.\r\nQUIT\r\n' >&3
answer=$(cat <&3 || true)
exec 3>&-
rm $far/hold /home/bob/hold
wait $stopping || fail "zmctl stop: $(cat /tmp/stopped)"
for unit in $services; do
	[ "$(systemctl is-active $unit)" = inactive ] || fail "$unit is $(systemctl is-active $unit)"
done
[ "$(grep -c '^on its way$' $far/got)" = 1 ] || fail "the other host has $(cat $far/got)"
once 'to a slow program' /home/bob/slow
zmctl start
await empty
[ "$(grep -c '^on its way$' $far/got)" = 1 ] || fail "the other host has it twice"
once 'to a slow program' /home/bob/slow
case $answer in
*"250 2.0.0"*) once 'half of it' /var/mail/alice ;;
*) [ "$(count 'half of it' /var/mail/alice)" = 0 ] || fail "not taken, and delivered: $answer" ;;
esac
echo "the client in the middle of its message heard: $answer"
rm /home/bob/.forward
healthy
