"""Texts of many languages cut into sentences by hand, as in ``sentence_cases``. Own sentences."""

ENGLISH_NUMBERS = """
He scored 28.‖ The team won.
It happened in 2013.‖ He left.
He was 28.‖ Mary was 30.
I am 28.‖ Mary is 30.
He scored 28.‖ August was a hot month.
They finished on page 12.‖ April came.
There were 19.‖ Nobody stayed.
He won 3.‖ FC Barcelona won 5.
He scored 28.‖ 5 people left.
Solve for x.‖ Multiply both sides.
The answer is a.‖ Then go on.
Some, e. g. Berlin, i. e. Paris, are large.
The lesson starts at 9 a. m. on Monday.
He studied art.‖ A painter taught him.
The sky was red.‖ Birds flew.
It met World War II.‖ Then came peace.
Open the doc.‖ Click Save.
The J. C. Penney store closed.‖ It was old.
She met R. De Niro and J. Le Pen.‖ Both left.
The law firm of Hill & Co.‖ The price was low.
His name is Han.‖ Han lives here.
It is John's.‖ Mary knows.
She is no. 1.‖ He is no. 2.
"""

GERMAN = """
Goethe wurde am 28. August 1749 in Frankfurt geboren.‖ Er starb 1832.
Der 3. Oktober ist ein Feiertag.‖ Viele haben frei.
Die Sitzung ist am 5. Mai.‖ Sie beginnt um neun.
Er kam am 3. und ging am 5. September.‖ Niemand sah ihn.
Am 24. Dezember ist Heiligabend.
Das Treffen vom 2. April war kurz.
Geboren 28. August 1749, gestorben 22. März 1832.
Bis 30. November gilt der Preis.‖ Danach nicht mehr.
Er wurde am 3. Jan. 1900 geboren.
Er wurde am 28. 8. 1749 geboren.‖ Sie später.
Er kommt am 28.‖ Die Stadt wartet.
Im 19. Jahrhundert wuchs die Stadt.‖ Im 20. schrumpfte sie.
Ende des 18. Jahrhunderts kam die Wende.
Die Burg stammt aus dem 12. Jh. und ist offen.
Sie stammt aus dem 12. Jh.‖ Die Mauer ist jünger.
Der 1. FC Köln gewann.‖ Der Trainer lachte.
Er spielt beim 1. FC Nürnberg.‖ Sie spielt Handball.
Im 2. Weltkrieg wurde sie zerstört.
Er feierte seinen 60. Geburtstag.‖ Alle kamen.
Sie wohnt im 3. Stock.‖ Der Aufzug ist defekt.
Das ist die 2. Auflage.‖ Die erste ist vergriffen.
Im II. Weltkrieg floh er.‖ Er kam nie zurück.
Kaiser Wilhelm II. ging ins Exil.‖ Das Reich war am Ende.
Es waren 28.‖ Niemand blieb.
Er wurde 28.‖ Das war zu jung.
Es geschah 2013.‖ Merkel war Kanzlerin.
Dort wohnt z. B. Herr Voss.‖ Er ist alt.
Dort wohnt z.B. Herr Voss.‖ Er ist alt.
Z. B. Herr Voss wohnt dort.‖ Er ist alt.
Er kam spät, d. h. Montag.‖ Sie war früh.
Dort leben u. a. Bären und Wölfe.‖ Es gibt auch Luchse.
Das ist i. d. R. Sache der Länder.‖ Der Bund zahlt.
Das Buch (s. o.) ist neu.‖ Das andere nicht.
Siehe s. u. Kapitel drei.
Er kam m. E. Montag zurück.
Das gilt z. T. Montag, z. Zt. Dienstag.
Das gilt u. U. Jahre.
Cäsar starb 44 v. Chr. in Rom.‖ Augustus folgte.
Er starb 14 n. Chr.‖ Er war alt.
Das Hotel kostet 80 Euro inkl. MwSt. und Frühstück.
Der Preis ist inkl. MwSt.‖ Der Versand ist frei.
Der Preis gilt exkl. Versand und zzgl. Mehrwertsteuer.
Äpfel bzw. Birnen sind da.‖ Nüsse fehlen.
Es sind ca. Hundert.‖ Mehr nicht.
Ggf. Herrn Voss fragen, evtl. Frau Kurz.
Vgl. Müller, Bd. 3, Nr. 7.‖ Dort steht es.
Er kaufte Äpfel, Birnen usw.‖ Die Nüsse vergaß er.
Er kaufte Äpfel, Birnen usw. und ging.
Hr. Voss und Fr. Kurz kamen.‖ Niemand grüßte.
Anna Kurz, geb. Voss, gest. 1920, war Malerin.
Das Buch, Hrsg. Kurz, ist alt.
Sie wohnt in der Berliner Str. 5 in Bonn.‖ Er nicht.
Es dauert 3 Std. Pause eingerechnet.
Die Stadt hat 3 Mio. Einwohner und 2 Mrd. Euro Schulden.
Die St. Petersburger Zeitung schrieb es.
Dr. med. Kurz und Prof. Dr. Voss kamen.
Die sog. Wende kam spät.‖ Dann ging es schnell.
Nach § 3 Abs. 2 Satz 1 ist das verboten.‖ Das gilt immer.
Sie wohnt in Frankfurt a. M. und Köln.
Frankfurt a. Main ist groß.‖ Köln auch.
„Komm her!“, rief sie.‖ „Sofort!“‖ Er kam.
„Ist es spät?“‖ Dann ging er.
»Komm.«‖ Dann ging er.
Er sagte: „Nein.“‖ Sie ging.
Das Spiel endete 3:1.‖ Alle feierten.
Er lebt in Bonn, bspw. Köln wäre näher.
Er hat 5.000 Euro.‖ Sie hat 3,5 Mio.
"""

FRENCH = """
M. Dupont est arrivé.‖ Mme. Durand est partie.
MM. Dupont et Durand sont là.‖ Mlle. Petit aussi.
Il est mort en 44 av. J.-C. à Rome.‖ Auguste lui succéda.
Il est mort en 44 av. J.-C.‖ Il était vieux.
La ville compte env. Deux mille habitants.
Voir p. 12 et éd. Gallimard.‖ Puis relire.
Les villes, p. ex. Paris et Lyon, sont belles.‖ Nice aussi.
Les villes, par ex. Paris, sont belles.
Le soleil, c.-à-d. Hélios, se lève.
J.-J. Rousseau est né à Genève.‖ Il y vécut.
Quoi ?‖ Non !‖ C'est faux.
Vraiment ?‖ Oui.
Il a dit « Non ! »‖ Puis il est parti.
« Viens.‖ Il est tard. »‖ Puis rien.
« Viens ! » dit-il.‖ Elle vint.
« Viens ! », dit-il.
Il dit : « Non. »‖ Elle rit.
Elle habite av. Victor-Hugo à Paris.
Il acheta des pommes, des poires, etc.‖ Le reste attendit.
Le roi Louis XIV.‖ Puis la reine.
Au XIXe siècle, tout changea.‖ Rien ne resta.
Le 28 août 1749 naquit Goethe.‖ Il mourut en 1832.
Art. 5 du code.‖ Le juge l'a lu.
Il vit aux É.-U. depuis longtemps.
Il habite 3, bd. Voltaire.‖ Elle aussi.
Il a lu le vol. 3, chap. 2.‖ C'est long.
"""

SPANISH = """
El Sr. García y la Sra. Ruiz llegaron.‖ Nadie habló.
La Dra. Ruiz y el Dr. Sanz trabajan.‖ Es tarde.
¿Cómo está Ud.?‖ Bien.
A Ud. García le conoce.
Vea el núm. 5 y la pág. 12.‖ Luego siga.
Vive en EE. UU. desde niño.‖ Es feliz.
Vive en EE. UU.‖ La vida es cara.
Vive en EE.UU.‖ El clima es bueno.
Roma cayó en el s. V.‖ Después todo cambió.
César murió en 44 a. C. en Roma.‖ Augusto le siguió.
César murió en 44 a. C.‖ El Senado calló.
Hay frutas, p. ej. Manzanas.‖ Son buenas.
Hay ciudades, por ej. Madrid.‖ Son grandes.
¿Qué?‖ ¡No!‖ ¿Por qué no?
¡Hola!‖ ¿Qué tal?
¡Qué día!, dijo Ana.
No sé qué es.‖ Luego veremos.
El Gral. Franco y el Lic. Pérez hablaron.
La Avda. Colón es larga.‖ La otra no.
Compró peras, etc.‖ Luego salió.
Los RR. HH. de la empresa.
"""

ITALIAN = """
Il sig. Rossi è qui.‖ La sig.ra Bianchi no.
Il dott. Verdi e il prof. Neri sono arrivati.‖ Tutti tacciono.
Vedi pag. 12 e pagg. 15-16.‖ Poi torna.
Comprò mele, pere, ecc.‖ Poi uscì.
Alcune città, ad es. Roma, sono antiche.‖ Altre no.
Alcune città, p. es. Roma, sono antiche.
Cesare morì nel 44 a.C. a Roma.‖ Augusto lo seguì.
L'avv. Bruni e l'ing. Costa parlano.
Il n. 5 è libero.‖ Il 6 no.
Che ore sono?‖ È tardi!‖ Andiamo.
"""

PORTUGUESE = """
O Sr. Silva e a Sra. Costa chegaram.‖ Ninguém falou.
A Dra. Lima e o Prof. Reis saíram.‖ É tarde.
Há frutas, p. ex. Maçãs.‖ São boas.
No séc. XIX tudo mudou.‖ Nada ficou.
A Av. Paulista é longa.‖ A outra não.
César morreu em 44 a.C. em Roma.‖ Augusto o seguiu.
Veja a pág. 12.‖ Depois volte.
O Exmo. Senhor chegou.‖ O Eng. Costa também.
"""

DUTCH = """
Grote steden, bijv. Amsterdam, zijn duur.‖ Kleine niet.
Grote steden, bv. Utrecht, zijn duur.
Hij komt later, d.w.z. Maandag.‖ Zij niet.
Er wonen o.a. Duitsers en Belgen.‖ Het is er druk.
Dhr. Jansen en mevr. De Vries kwamen.‖ Niemand sprak.
Hij sprak met dhr. Jansen en mw. Smit.
Hij kocht appels, peren enz.‖ Daarna ging hij.
Zie blz. 12 en nr. 5.‖ Lees dan verder.
Prof. dr. Bakker en drs. Visser spraken.
De firma, i.p.v. Jansen, betaalt.
"""

POLISH_AND_CZECH = """
Miasta, np. Kraków, są stare.‖ Inne nie.
Przyszedł późno, tzn. Jan przyszedł.‖ Nikt nie czekał.
Mieszkał tu dr Nowak i prof. Kowalski.‖ Było cicho.
Byli tam m.in. Polacy i Czesi.‖ To było dawno.
Mieszka przy ul. Długiej w Gdańsku.‖ Lubi morze.
Szkoła im. Jana Pawła jest duża.‖ Stoi przy rynku.
Kościół św. Anny jest stary.‖ Stoi na wzgórzu.
Kupił jabłka, gruszki itd.‖ Potem wyszedł.
Miasto ma 5 tys. Polaków i 2 mln. Niemców.
Inż. Wolski i ks. Popiełuszko byli tam.
Rozmawiał z inż. Wolskim.‖ Było późno.
Velká města, např. Praha, jsou drahá.‖ Malá ne.
Narodil se 28. srpna 1749 ve Frankfurtu.‖ Zemřel 1832.
Narodil se 28. 8. 1749 ve Frankfurtu.
Kostel sv. Jana je starý.‖ Stojí na kopci.
"""

NORDIC_AND_BALTIC = """
Store byer, f.eks. København, er dyre.‖ Små er ikke.
Store byer, f. eks. Oslo, er dyre.‖ Det er synd.
Stora städer, t.ex. Stockholm, är dyra.‖ Det är synd.
Stora städer, t. ex. Malmö, är dyra.
Der bor bl.a. Svenskere og Finner.‖ De er mange.
Han kommer senere, dvs. Mandag.‖ Hun gør ikke.
Han blev født den 28. august 1749.‖ Han døde i 1832.
Han kjøpte epler osv.‖ Så gikk han.
Han dog 44 f.Kr. i Rom.‖ Augustus följde.
Isot kaupungit, esim. Helsinki, ovat kalliita.‖ Pienet eivät.
Hän syntyi 28. elokuuta 1749.‖ Hän kuoli 1832.
Goethe fæddist 28. ágúst 1749.‖ Hann dó 1832.
"""

CYRILLIC_AND_GREEK = """
Он родился в г. Москве.‖ Она в Киеве.
Он пришёл, т. е. Иван пришёл.‖ Было поздно.
Он купил яблоки и т. д.‖ Потом ушёл.
Он купил яблоки, груши и др.‖ Он ушёл.
Он живёт на ул. Пушкина.‖ Она рядом.
Это было в 1945 г.‖ Он помнит.
Театр им. Чехова открыт.‖ Билеты есть.
См. рис. 5 и стр. 12.‖ Потом вернитесь.
Проф. Иванов и акад. Павлов спорили.‖ Все молчали.
В XIX в. Россия росла.
Город имеет 5 тыс. Жителей.
Μεγάλες πόλεις, π.χ. Αθήνα, είναι ακριβές.‖ Οι μικρές όχι.
Τι ώρα είναι;‖ Είναι αργά.
"""

OTHER_SCRIPTS = """
هل جاء أحمد؟‖ نعم!‖ جاء.
وصل د. محمد إلى المدينة.‖ ثم غادر.
کیا وہ آیا؟‖ ہاں۔‖ وہ آیا۔
राम आया।‖ क्या सीता आई?‖ हाँ।
वहाँ डॉ. सिंह रहते हैं।‖ वे बूढ़े हैं।
Նա եկավ։‖ Նա գնաց։
እሱ መጣ።‖ እሷ ሄደች።
እሱ መጣ፧‖ አዎ።
သူလာတယ်။‖ သူမသွားတယ်။
គាត់មក។‖ នាងទៅ។
គាត់មក៕‖ នាងទៅ។
เขามาแล้ว เธอไปแล้ว
ปี พ.ศ. 2550 เขามา
"""
