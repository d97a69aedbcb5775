"""Names of every kind come back as they were sent, in NFC. Those that are refused: tests/unit/test_names.py, and over HTTP
test_bad_inputs.py."""

import unicodedata

from tests.conftest import MakeStack
from uploader.domain.digest import EMPTY_MD5

_LONG = ["a" * 255, "é" * 127, "漢" * 85, "😀" * 63, "/".join(["a" * 255] * 4), "a/" * 511 + "ab", "a" * 250 + ".iso"]
_WITHOUT_BLANKS = """
    a a.txt a/b a/b/c.tar.gz 0 - --help -rf _ ~ ~a a~ ... .... ..a a..
    .a .htaccess .git/config
    CON NUL.txt aux COM1 LPT1.log desktop.ini Thumbs.db a. a:b a::$DATA C:
    a"b a'b a`b a;b a&b a|b a<b> a*b a?b a#b a%b a+b a=b a,b a@b a!b
    a$b $(reboot) ${HOME} `id` a^b a(b) a[b] a{b} %2e%2e%2fa %00 %0d%0a a% %s%n
    <script>alert(1)</script> {{7*7}} \u0024x
    filename*=UTF-8''b a\u200bb a\ufeffb a\u00adb
    café cafe\u0301 ÄÖÜß ñandú Ångström A\u030angstro\u0308m Łódź čšž İı ﬁ Ǆ ſ K
    Ελληνικά русский українська српски қазақ հայերեն ქართული עברית العربية فارسی اردو
    हिन्दी বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ไทย ລາວ မြန်မာ ខ្មែរ བོད་ཡིག አማርኛ ᏣᎳᎩ
    日本語 カタカナ ｶﾀｶﾅ ひらがな か\u3099 漢字 汉字 한국어 한 ᄀ\u1161\u11a8 Việt Tie\u0302\u0301ng
    😀 👨‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇨🇳 ☃ ♥️ ① ½ ² Ⅷ ٣ １２３ 𝔘𝔫𝔦 𠀀 \U0010fffd \ue000 \ufffd
    Z\u0351\u036b\u0343a\u0363lgo a\u0300\u0316 \u0301 a\u034fb a\u200cb a\u200db ﷺ ‱ ∞ a⁄b a∕b a／b a＼b
    ․․ ‥ … ．． a\ufe0f \U000e0041 a\u115fb a\u3164b a\u2800b \u180e a\u0378b \ufdd0 \uffff
"""
_WITH_BLANKS = [
    *(" ", " a", "a ", "a b", "a  b", ". a", "a .", "a/ /b", "a/ .. /b", "... /a", "a. "),
    *("'; DROP TABLE file; --", "${jndi:ldap://a}".replace("/", "_"), '"; filename="b', "=cmd|' _C calc'!A0"),
    *("a\u00a0b", "a\u3000b", "中文 文件.txt"),
]

NAMES = list(dict.fromkeys([*_WITHOUT_BLANKS.split(), *_WITH_BLANKS, *_LONG]))


async def test_a_name_comes_back_as_it_was_sent(make_stack: MakeStack) -> None:
    assert len(NAMES) > 150
    async with make_stack(durability="process") as stack:
        for name in NAMES:
            kept = unicodedata.normalize("NFC", name)
            response = await stack.client.post(f"/files/{EMPTY_MD5}", json={"name": name, "size": 0})
            assert response.status_code == 201, f"{name!r}: {response.text}"
            assert response.json()["file"]["name"] == kept
            (listed,) = (await stack.client.get("/me/files", params={"prefix": kept})).json()["files"]
            assert listed["name"] == kept
            # Others of them are in the way of this one, or it in theirs.
            await stack.client.delete("/me/files", params={"prefix": kept.split("/")[0]})
