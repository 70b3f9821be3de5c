"""Texts cut into sentences by hand: ``‖`` marks each boundary. Own sentences."""

ENGLISH = """
She opened the door.‖ The room was empty.
Dr. Lena Ortiz met Mr. and Mrs. Kane.‖ They talked for an hour.
Prof. Amir Haddad and Gen. Doyle wrote to Sen. Park.‖ Rep. Lund answered.
The letter was signed by St. John's mayor.‖ Nobody read it.
They climbed Mt. Kenya in May.‖ It rained.
He lives on Main St.‖ He likes it there.
Martin Vale Jr. was born in Ohio.‖ His son is Martin Vale III.
The estate went to Oscar Pell Sr.‖ The widow objected.
The case reached the U.S. Senate in March.‖ It failed.
She moved to the U.S.‖ She never came back.
The U.K. and the U.S. signed it.‖ France did not.
He lives in the U.S. now.
Washington, D.C. is humid.‖ Boston is not.
Many fruits, e.g. apples and pears, keep well.‖ Berries do not.
The second, i.e. the smaller, ship sank.
They sold apples, pears, etc. at the gate.
They sold apples, pears, etc.‖ Nobody bought any.
Nguyen et al. found no effect.‖ Others did.
The effect was shown by Nguyen et al.‖ However, it was small.
Compare cf. Miller with Jones vs. Smith.
The answer is on p. 12 of Vol. II, see Fig. A.
See Fig. 3 and Eq. 7.‖ Then go on.
He wore No. 23 for years.‖ Fans loved it.
Is it true?‖ No.‖ Nobody knows.
She holds a Ph.D. in physics.‖ Her brother has an M.D.
She earned her Ph.D.‖ Then she left.
He took a B.Sc. and an M.Sc. at Leeds.
The bus leaves at 5 p.m. on Monday.
The bus leaves at 5 p.m.‖ The train leaves later.
It opens at 9 a.m. and closes at 5 p.m.‖ It is free.
Apple Inc. in 1990 was small.‖ It grew.
The deal with Orbit Inc.‖ The price was low.
Hill & Co. bought Dale Ltd. and Moor Corp. last year.
The fair is on Tues. at noon.‖ Come early.
It began on Jan. 5, 1999.‖ It ended in Dec. of that year.
The poet (c. 1240 – d. 1301) left no work.‖ His son did.
Queen Adela (b. March 1201) reigned for a year.
J. R. R. Tolkien wrote it.‖ He lived in Oxford.
The book by J.R.R. Tolkien sold well.
It was signed by George W. Bush.‖ Congress agreed.
The film stars Samuel L. Jackson and Michael J. Fox.
Oranges have vitamin C.‖ It prevents scurvy.
There is no Plan B.‖ Then we stop.
Take vitamin C.‖ Doctors advise it.
The cable is USB-C.‖ Laptops have it.
AT&T was split.‖ Nobody at AT&T.‖ Mattered.
He was born in 2013.‖ He is young.
The value of pi is 3.14 or so.‖ That is enough.
Version 1.2 and v1.2.3 are out.‖ Update now.
They released version 2.‖ The old one stays.
The temperature was 21.5.‖ It fell.
It cost $5.‖ She paid $3.50 more.
Sales rose by 12%.‖ Costs fell.
About 5 km. of road were built.
The walk is 5 km.‖ Runners do it daily.
See example.com for more.‖ Or write to me@example.com.‖ We answer.
The page www.example.com/a.html?x=1.5 is gone.‖ Try later.
Wait... what did you say?
Wait...‖ He left?
I wonder … perhaps not.
And then…‖ Silence.
They sang . . . and danced.
The play " ... Baby Blue" was short.‖ It failed.
"It is late," he said.‖ "We go."
"It is late."‖ Then he left.
“It is late.”‖ Then he left.
He said, “Stop.”‖ She stopped.
'Is it late?'‖ Then go.
"Really?" he asked.
“Really?” she said.‖ “Yes.”
"Stop!" cried the guard.‖ Nobody stopped.
(See p. 5.)‖ Next comes the proof.
The proof is short (see p. 5).‖ Next comes the lemma.
He left [sic].‖ She stayed.
The rate doubled in 2013.[1]‖ It fell later.[2, 3]‖ Nobody knows why.
What?!‖ No!!!‖ Yes!
Really‽‖ Yes.
What now?‖ 5 people left.
Twelve left.‖ 14 stayed.
Henry (1176? – 1216) was king.‖ He fell.
He asked "What Now?" (1937) again.
Yahoo! bought it.‖ Yahoo! Japan did not.
Great!🎉🎉‖ Next round.
Great!‖ 🎉 Next round.
iPhone sales fell.‖ iPad sales rose.
hi there.‖ how are you?‖ i am fine, e.g. rested.
The dept. of health, approx. 5 people, agreed.
Sgt. Blake and Lt. Col. Moss of Bldg. 4 met.‖ They spoke.
The word is short; it is old: very old, indeed.
One sentence without end
No space.Here it goes on.‖ Here not.
A. Becker was late.‖ B. Cho was not.
He plays in the N.F.L.‖ She in the N.B.A. finals.
Nobody knows why.   
"""

CHINESE = """
他来了。‖她走了。
他来了！‖她走了？‖真的。
他说：“我来了。”‖然后坐下。
他问：“你来吗？”，她没有回答。
她说：「好。」‖他笑了。
『完了！』‖大家都说。
（他没来。）‖她来了。
【注意！】‖不要动。
他读了《三体》。‖她没读。
他导演了《你好！》并获奖。‖很多人看了。
第一点；‖第二点；‖第三点。
真的吗？！‖不会吧！！！‖好。
圆周率约为3.14。‖够了。
增长了3.5%。‖下降了２．５％。
圆周率是３．１４。‖对。
这是句子．‖这是另一句．
他走了……‖天黑了。
我想…‖不去了。
他说.‖然后走了.
共有3.5万人。
1. 第一步。‖2. 第二步。
1.首先打开。‖然后关上。
１．打开门。‖２．关上门。
他走了。‖ 她来了。
**重点。**‖其余不重要。
第一句。‖**重点**在这里。‖完。
他说:"来吧。"‖然后走了。
他走了。‖"来吧"，她说。
好！🎉‖下一个。
根据报告[1]，是的。[2]‖不是。
"""

JAPANESE = """
彼は来た。‖彼女は去った。
「はい。」と言った。‖終わり。
『君の名。』は映画だ。‖人気がある。
本当ですか？‖いいえ！‖はい。
円周率は３．１４です。‖以上。
これは文です．‖次の文です．
これは文です｡‖次の文です｡
終わり。‖　次。
（笑。）‖次の話。
彼は…‖いや、やめた。
"""

MIXED = """
他用的是 Python。‖It works.‖ 好。
Hello.‖ 你好。‖World!
使用U.S.政府的数据。‖好。
Dr.王来了。‖他是医生。
他说OK.‖然后走了。
J.K.罗琳写了它。‖很好看。
Is it good?‖是的。‖Yes.
见 Fig. 3。‖然后 see p. 5.‖ 好。
iPhone很贵。‖iPad也是。
그는 왔다.‖ 그녀는 갔다.‖ 정말?‖ 네.
राम घर गया।‖ सीता आई।
هل جاء؟‖ نعم، جاء.‖ انتهى.
یہ کتاب ہے۔‖ وہ قلم ہے۔
¿Vienes?‖ ¡Sí!‖ Vamos.
¿Vienes? preguntó Ana.
Это дом.‖ Он стоит.‖ А. С. Пушкин писал.
„Komm her.“‖ Dann ging er, d.h. bald.
Il a dit « Non. »‖ Puis rien.
Η μέρα τελείωσε.‖ Όλα καλά.
დღე დამთავრდა.‖ ყველაფერი კარგადაა.
"""

# Newlines are written as ↵.
LAYOUT = """
1. First item↵‖2. Second item↵‖3. Third item
1. Open it.‖ 2. Close it.
- one thing↵‖- another thing↵↵‖- last
* First.↵‖* Second.‖ It goes on.
# Heading↵↵‖Text begins.‖ It goes on.↵↵‖## 2. Next heading↵‖More.
Title line↵‖by Ann Lee
The end.↵↵‖Next paragraph.
The end. ↵ ↵‖  Next paragraph.
↵↵Leading lines.‖ Next.
The end.↵
Step 1. Open the lid.‖ Step 2. Close it.
**1. First** thing.‖ **2. Second** thing.
(a) the first.‖ (b) the second.
a. the first↵‖b. the second
IV. The fourth part.‖ It is long.
1.↵First item
1.2. A nested item.‖ It is deep.
3.5 is a number.‖ It is odd.
**Bold sentence.**‖ Next.
*Emphasis.*‖ Next.
Use `a.b()` first.‖ Then `c.d`.‖ Done.
Edit README.md now.‖ Open setup.py.‖ Done.
It runs on Node.js.‖ It is fast.
import os↵‖x = a.b.c(1.5)↵‖}↵↵y = 2
```↵code here↵‖```↵Text after.
> Quoted line.↵‖> Next line.
---↵Text.
| a | b. |↵‖| c | d |
Dear Dr.↵‖Smith
Hello.\u2028‖Next.
Hello.↵\r‖Next.
"""

# The limits of single rules.
CORNERS = """
It rose.[1, 2, 3, 456]‖ He left.
It rose.[1, 2, 3, 4567] He left.
It rose.[] He left.
It rose.[a] He left.
It is in the U.S.‖ --------He left.
It is in the U.S. ---------He left.
It is done.‖ ---------he left.
2013.‖ It was a good year.
201. It was a good year.
他共有3.然后走了。
他共有(3).‖然后走了。
値はX．5になる。
値は（X．）．‖5になる。
根据 U.S. 政府的数据。‖好。
In the U.S. "!‖ He left.
He said no.‖ "?!" He left.
It is done.) . 5 stayed.
hm... what is it.‖ i see.
AVERYVERYVERYLONGWORD.‖ Nobody came.
In Vol. XIV it is said, in Vol. Two it is not.‖ In which vol.?‖ Nobody knows the vol.‖ Help.
"Is it the end?"‖ 'No.'‖ "Yes."
He left ( at 5 p.m. ) .‖ She stayed.
It rose 5 kg. per year.‖ It is 5 kg. 3 are lost.
"""
