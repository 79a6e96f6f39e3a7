# What users of this machine want done with their mail, by the unit of the agents.
useradd --create-home --shell /bin/bash bob
useradd --create-home --shell /bin/bash carol
chmod 700 /home/bob /home/carol
printf '"|id -un >/home/bob/ran-as; cat >/home/bob/piped"\n' >/home/bob/.forward
printf '/home/carol/Maildir/\n' >/home/carol/.forward
chown bob: /home/bob/.forward
chown carol: /home/carol/.forward
send 'to a program' bob
send 'to a Maildir' carol
once 'to a program' /home/bob/piped
[ "$(cat /home/bob/ran-as)" = bob ] || fail "bob's program ran as $(cat /home/bob/ran-as)"
await sh -c 'grep -q "to a Maildir" /home/carol/Maildir/new/*'
[ "$(stat -c %U:%a /home/carol/Maildir/new/*)" = carol:600 ] || fail "carol's mail: $(stat -c %U:%a /home/carol/Maildir/new/*)"

# A socket for LMTP is smtpserver's to make.
echo 'LMTPLISTEN=/run/zmailer/lmtp' >>/etc/zmailer/zmailer.conf
zmctl restart smtpserver
[ -S /run/zmailer/lmtp ] || fail "there is no socket"
sed -i '/^LMTPLISTEN=.run/d' /etc/zmailer/zmailer.conf
zmctl restart smtpserver

# root's mail is root's.
send 'to the postmaster' postmaster
once 'to the postmaster' /var/mail/root

# By SMTP, and by somebody without rights.
exec 3<>/dev/tcp/127.0.0.1/25
printf 'EHLO client\r\nMAIL FROM:<bob@mail.example.org>\r\nRCPT TO:<alice@mail.example.org>\r\nDATA\r\nSubject: by SMTP\r\n\r\nHello.\r\n.\r\nQUIT\r\n' >&3
cat <&3 | grep -q '^250 .*2.0.0\|^250 2' || fail "SMTP was not taken"
exec 3>&-
once 'by SMTP' /var/mail/alice
su carol -c "printf 'Subject: by carol\n\nHello.\n' | sendmail alice"
once 'by carol' /var/mail/alice
grep -q '^From carol@' /var/mail/alice || fail "carol is not the sender"
await empty
